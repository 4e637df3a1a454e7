#!/usr/bin/env bash
# A system prompt of 2,000 tokens and 10,000 requests: prompt tokens computed with the prefix cache and without, by the
# server's own counters.
# usage: [KVASIR=BINARY] [MODEL=.../stories260K.gguf] [REQUESTS=10000] [REQUESTS_OFF=200] bench/system_prompt.sh [--out DIR]
# Without the cache every request costs the same, so REQUESTS_OFF of them are run and multiplied; set it to REQUESTS to run all.
set -euo pipefail
. "$(dirname "$0")/bench_lib.sh"
OUT=$(dirname "$0")/../build/results/system_prompt
if [ "${1:-}" = --out ]; then OUT=$2; fi
mkdir -p "$OUT"
model=${MODEL:-$here/../../shared/models/stories260K.gguf}
requests=${REQUESTS:-10000} requests_off=${REQUESTS_OFF:-200}
prefix=2000 own=16 output=32  # the model's context is 2,048
[ -f "$model" ] || [ "$model" = demo ] || die "no model at $model; set MODEL"

count() {  # count NAME REQUESTS FLAGS...: sets rows, computed, found, seconds
  local name=$1 asked=$2
  shift 2
  start_server "$model" --kv-mem 64MiB --seed 1 --log-level warn "$@"
  "$KVASIR" bench --url "$url" --no-warm-up --seed 1 --vocab "${VOCAB:-500}" --concurrency 16 --requests "$asked" \
    --shared-prefix $prefix --input-len $own --output-len $output --json "$OUT/$name.json"
  rows=$(metric kvasir_prefill_rows_total)
  computed=$(metric vllm:prompt_tokens_by_source_total '"local_compute"')
  found=$(metric vllm:prompt_tokens_by_source_total '"local_cache_hit"')
  seconds=$(json "$OUT/$name.json" "'%.1f' % d['workloads'][0]['wall']")
  [ "$(json "$OUT/$name.json" "d['workloads'][0]['ok']")" = "$asked" ] || die "$name: not all $asked requests were answered"
  stop_server
  echo "$name: $asked requests in $seconds s; prompt rows run $rows, tokens computed $computed, found $found"
}

count off "$requests_off" --no-prefix-caching
rows_off=$rows seconds_off=$seconds
count on "$requests"
"$PYTHON" - "$requests" "$requests_off" "$rows_off" "$seconds_off" "$rows" "$computed" "$found" "$seconds" $prefix $own <<'P'
import sys
n, n_off, rows_off, seconds_off, rows, computed, found, seconds, prefix, own = map(float, sys.argv[1:])
scale = n / n_off
how = "counted" if scale == 1 else "%d requests counted, times %g" % (n_off, scale)
print("the prefix once and each request's own tokens: %d (a little less where two begin alike)" % (prefix + n * own))
print("| system prompt of %d tokens, %d requests: prompt tokens computed | %d (without the cache: %d; %s) | "
      "%.0f times fewer; %.0f s instead of %.0f s |"
      % (prefix, n, rows, rows_off * scale, how, rows_off * scale / rows, seconds, seconds_off * scale))
P
