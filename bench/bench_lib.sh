# Sourced by the scripts beside it: starts and stops our server, reads its metrics and reports.
# KVASIR is the binary; OUT the folder for logs and reports.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
KVASIR=${KVASIR:-$here/../build/release/kvasir}
PYTHON=${PYTHON:-python3}
server_pid=

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# The calling script's comment is its help, which needs no program.
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
done
[ -x "$KVASIR" ] || die "no binary at $KVASIR (./kvasir-quickstart --build-only, or set KVASIR)"

has_flag() {  # has_flag --evict: does this binary's serve know it?
  local help  # a pipe that grep -q leaves early would fail: the program says when its output is not read
  help=$("$KVASIR" serve --help)
  grep -q -e "$1[ ,]" <<<"$help"
}

# start_server MODEL FLAGS...: waits until it is ready; sets url. Its output goes to $OUT/server.log.
start_server() {
  local log=$OUT/server.log
  "$KVASIR" serve "$@" --port 0 >"$log" 2>&1 &
  server_pid=$!
  for _ in $(seq 600); do
    kill -0 "$server_pid" 2>/dev/null || { tail -3 "$log" >&2; die "the server ended: serve $*"; }
    url=$(sed -n 's/.*serving .* at \(http:[^ ]*\).*/\1/p' "$log" | head -1)
    [ -n "$url" ] && curl -fs "$url/health" >/dev/null && return
    sleep 0.1
  done
  die "the server is not ready: serve $*"
}

stop_server() {
  [ -n "$server_pid" ] || return 0
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
  server_pid=
}
trap stop_server EXIT

# metric NAME [LABEL]: the sum of the series of this name whose labels contain LABEL.
metric() {
  curl -fs "$url/metrics" | awk -v name="$1" -v label="${2:-}" '
    index($0, name "{") == 1 && (label == "" || index($0, label)) { sum += $NF; seen = 1 }
    END { if (seen) printf "%.15g\n", sum; else print "nan" }'
}

# json FILE EXPRESSION: a Python expression over the parsed file, d.
json() {
  "$PYTHON" -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"
}
