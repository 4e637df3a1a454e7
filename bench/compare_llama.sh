#!/usr/bin/env bash
# Decode speed beside llama.cpp in one run; see compare_llama.py for what is measured.
# usage: LLAMA_BENCH=PATH [LLAMA_SERVER=PATH] [PYTHON=python3] bench/compare_llama.sh [--rounds 5] [--depth 0,1024,4096] ...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peerbench=$here/../../shared/tools/peerbench.py
python=${PYTHON:-python3}
extra=()
if [ -n "${LLAMA_SERVER:-}" ] && [ -f "$peerbench" ] && "$python" -c 'import aiohttp' 2>/dev/null; then
  extra=(--peerbench "$peerbench")
fi
grep -m1 'model name' /proc/cpuinfo
exec "$python" "$here/compare_llama.py" "${extra[@]}" "$@"
