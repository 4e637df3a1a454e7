#!/usr/bin/env bash
# Load against latency beyond capacity, with the scheduler's knobs at several values: a sweep of
# `kvasir bench` for each, JSON reports and pictures, and whether overload is smooth.
# usage: [KVASIR=BINARY] [MODEL=demo] [KV_MEM=32MiB] [ONLY="base itl20"] bench/overload.sh [--out DIR] [--quick] [flags of kvasir bench --sweep ...]
# All runs see the same requests at the same rates: multiples of the capacity with default knobs.
# A full run takes about half an hour, --quick a third of it.
set -euo pipefail
. "$(dirname "$0")/bench_lib.sh"
OUT=$(dirname "$0")/../build/results/overload
quick=0
bench_flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --out) OUT=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    *) bench_flags+=("$1"); shift ;;
  esac
done
mkdir -p "$OUT"

# The pool is small, so that memory is what runs out; the queue is short, so that the end of a level
# shows what a long overload would.
serve_flags=(--kv-mem "${KV_MEM:-32MiB}" --max-num-seqs 32 --max-queue 32 --queue-timeout 10 --seed 1 --log-level warn)
sweep_flags=(--sweep --seed 1 --input-len 64:320 --output-len 32:96 --slo-ttft 2000 --slo-itl 150)
if [ $quick = 1 ]; then
  sweep_flags+=(--loads 0.25,1,2,4,10 --duration 12 --drain 12 --capacity-time 15)
else
  sweep_flags+=(--duration 30 --drain 15 --capacity-time 30)
fi

reports=()
capacity=
run() {  # run NAME LABEL [FLAG VALUE]: skipped if the server does not know the flag
  local name=$1 label=$2
  shift 2
  [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $name "* ]] || return 0
  if [ $# -gt 0 ] && ! has_flag "$1"; then
    echo "skipped: $label (this server has no $1)"
    return
  fi
  echo "== $label"
  start_server "${MODEL:-demo}" "${serve_flags[@]}" "$@"
  "$KVASIR" bench --url "$url" "${sweep_flags[@]}" ${capacity:+--capacity "$capacity"} "${bench_flags[@]}" \
    --label "$label" --json "$OUT/$name.json"
  # Nothing may be left behind.
  local held
  held=$(($(metric kvasir_kv_blocks_total) - $(metric kvasir_kv_blocks '"free"') - $(metric kvasir_kv_blocks '"evictable"')))
  echo "blocks held when all was over: $held"
  stop_server
  reports+=("$name")
  [ -n "$capacity" ] || capacity=$(json "$OUT/$name.json" "d['capacity_rps']")
}

plot() {  # plot FILE TITLE NAMES...: those that were run
  local file=$1 title=$2 files=()
  shift 2
  for name in "$@"; do
    [[ " ${reports[*]} " == *" $name "* ]] && files+=("$OUT/$name.json")
  done
  [ ${#files[@]} -gt 0 ] || return 0
  "$KVASIR" bench --plot "${files[@]}" --title "$title" --svg "$OUT/$file"
  echo "picture: $OUT/$file"
}

run base "defaults"
run reserve0 "reserve-blocks 0" --reserve-blocks 0
run reserve10 "reserve-blocks 0.1" --reserve-blocks 0.1
run swap "preempt swap" --preempt swap
run recompute "preempt recompute" --preempt recompute
run itl100 "itl-target 100" --itl-target 100
run itl50 "itl-target 50" --itl-target 50
run itl20 "itl-target 20" --itl-target 20

plot overload.svg "Overload: all knobs" base reserve0 reserve10 swap recompute itl100 itl50 itl20
plot overload-reserve.svg "Overload: blocks kept free when admitting" base reserve0 reserve10
plot overload-preempt.svg "Overload: what preemption does with its victim" base swap recompute
plot overload-itl.svg "Overload: target for the time between tokens" base itl100 itl50 itl20
"$PYTHON" "$here/overload_verdict.py" $(printf "$OUT/%s.json " "${reports[@]}")
