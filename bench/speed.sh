#!/usr/bin/env bash
# Speed beside llama.cpp and vLLM: every row of docs/performance.md, in rounds that alternate; one table at the end.
# usage: [KVASIR_PEERS=DIR] bench/speed.sh [--rounds 5] [--quick] [--only ROW,...] [--out DIR] ...      (--help: all flags)
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/speed.py" "$@"
