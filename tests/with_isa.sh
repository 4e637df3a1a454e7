#!/usr/bin/env bash
# with_isa.sh ISA PROGRAM [ARGS...]: runs PROGRAM on the instruction set ISA (portable, avx2, avx512, amx), which the processor must have.
# Exits 77 ("skipped"), saying so, where it has not, and where ISA is the best it has: then the plain run of PROGRAM is this one.
set -euo pipefail
isa=$1
shift
has() {
  local flag
  for flag in "$@"; do grep -qm1 -w -- "$flag" /proc/cpuinfo || return 1; done
}
best=portable
if has avx2 fma f16c bmi2; then best=avx2; fi
if [ "$best" = avx2 ] && has avx512f avx512bw avx512vl avx512dq avx512_vnni; then best=avx512; fi
if [ "$best" = avx512 ] && has amx_tile amx_int8; then best=amx; fi
order=(portable avx2 avx512 amx)
rank() {
  local i
  for i in "${!order[@]}"; do if [ "${order[i]}" = "$1" ]; then echo "$i"; fi; done
}
if [ "$(rank "$isa")" -gt "$(rank "$best")" ]; then
  echo "SKIPPED: this processor has no $isa"
  exit 77
fi
if [ "$isa" = "$best" ]; then
  echo "SKIPPED: $isa is the best here, which the plain run takes"
  exit 77
fi
export KVASIR_ISA=$isa
# A report under the test's name: the plain run of the same program may be under way and writes to PROGRAM.xml.
if [[ ${GTEST_OUTPUT:-} == xml:*/ ]]; then
  name=$(basename "$1")
  export GTEST_OUTPUT=$GTEST_OUTPUT${name%_test}_$isa.xml
fi
exec "$@"
