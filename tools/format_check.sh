#!/usr/bin/env bash
# Is every C++ file as clang-format 14 writes it? Prints the first differences. --fix rewrites the files.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
format=$(command -v clang-format-14 || true)
if [ -z "$format" ]; then
  echo "clang-format-14 is not here" >&2
  exit 1
fi
mapfile -t files < <(find src apps tests bench -name '*.h' -o -name '*.cc' | sort)
if [ "${1:-}" = --fix ]; then
  "$format" -i "${files[@]}"
  exit
fi
if ! output=$("$format" --dry-run --Werror "${files[@]}" 2>&1); then
  grep 'error:' <<<"$output" | sed 's/: error:.*//' | cut -d: -f1 | sort | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/\2: \1 places differ from clang-format 14/' >&2
  echo "tools/format_check.sh --fix rewrites them" >&2
  exit 1
fi
