#!/usr/bin/env bash
# clang-tidy 14 with the opt-in list of .clang-tidy over the sources that can still be fixed by hand: everything under
# src/ and apps/ but tests, fuzzers and benchmarks. usage: tidy_check.sh BUILD_FOLDER [file...]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
build=${1:?usage: tidy_check.sh BUILD_FOLDER [file...]}
shift
if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t files < <(find src apps -name '*.cc' ! -name '*_test.cc' ! -name 'test_*.cc' ! -name '*_fuzz.cc' ! -name '*_bench.cc' | sort)
fi
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet --warnings-as-errors='*' 2>/dev/null
