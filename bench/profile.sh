#!/usr/bin/env bash
# Where the time of one measurement goes.
# usage: bench/profile.sh perf|callgrind MODEL [flags of decode_bench]
#   perf       samples of the processor's clock (works on machines without hardware counters): functions by time, as they run
#   callgrind  instructions counted by valgrind, which knows no AVX-512: the AVX2 path of the same arithmetic, one thread, one round
# e.g. bench/profile.sh perf demo.gguf --prompt 512 --users 0 --rounds 20
#      bench/profile.sh callgrind demo.gguf --prompt 0 --depth 4096 --users 1 --output 8
# The bytes that a step must read come from decode_bench itself. DECODE_BENCH: the program.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${DECODE_BENCH:-$here/../build/release/bench/decode_bench}
out=${OUT:-$here/../build/results/profile}
how=${1:-}
[ $# -ge 2 ] && [ -x "$program" ] || { sed -n '2,8p' "$0"; exit 2; }
shift
mkdir -p "$out"
case $how in
  perf)
    perf record -q -e cpu-clock -F 997 -o "$out/perf.data" "$program" "$@" --read-mib 0
    perf report -i "$out/perf.data" --no-children --stdio --percent-limit 0.5 2>/dev/null | grep -v '^#' | grep -v '^$' | head -40
    ;;
  callgrind)
    rm -f "$out/callgrind.out"
    KVASIR_ISA=avx2 valgrind --tool=callgrind --callgrind-out-file="$out/callgrind.out" "$program" "$@" --threads 1 --rounds 1 --read-mib 0
    callgrind_annotate "$out/callgrind.out" | grep -v '^--' | head -60 | cut -c1-160
    ;;
  *) sed -n '2,8p' "$0"; exit 2 ;;
esac
