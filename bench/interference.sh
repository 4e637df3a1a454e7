#!/usr/bin/env bash
# What long prompts do to a user who is being answered, with --itl-target and without, as ratios of one run.
# usage: [KVASIR=BINARY] [MODEL=demo] bench/interference.sh [--target 150] [--prompt 4096] [--prompts 4] [--rounds 3] ...
# Two minutes on two cores; --help has all flags, bench/interference.py says what is measured.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KVASIR=${KVASIR:-$here/../build/release/kvasir} exec "${PYTHON:-python3}" "$here/interference.py" "$@"
