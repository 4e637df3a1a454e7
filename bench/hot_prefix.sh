#!/usr/bin/env bash
# A prefix that many share beside one-off prompts, in a pool that holds little more than two of them: does eviction keep it?
# usage: [KVASIR=BINARY] [MODEL=demo] bench/hot_prefix.sh [--out DIR] [POLICY ...]      (default: lru cost)
# Room for 1,504 tokens (94 blocks of 16); prompts of 600 tokens, one after the other. First 200 requests, half of them with a
# common prefix of 512; then 50 one-offs in a row; then 20 with the prefix again. For each: prompt tokens found in the
# cache (server's counters), tokens found by requests with the prefix over what a cache that never loses it would give, and
# their time to first token.
set -euo pipefail
. "$(dirname "$0")/bench_lib.sh"
OUT=$(dirname "$0")/../build/results/hot_prefix
if [ "${1:-}" = --out ]; then
  OUT=$2
  shift 2
fi
policies=("$@")
[ $# -gt 0 ] || policies=(lru cost)
mkdir -p "$OUT"
has_flag --evict || echo "this server has no --evict: one run with what it does"

phase() {  # phase NAME FIRST REQUESTS HOT_SHARE: prints one row
  local file=$OUT/$policy-$1.json hits queries
  hits=$(metric vllm:prefix_cache_hits_total)
  queries=$(metric vllm:prefix_cache_queries_total)
  "$KVASIR" bench --url "$url" --no-warm-up --seed 1 --vocab "${VOCAB:-49000}" --concurrency 1 --first-request "$2" \
    --requests "$3" --shared-prefix 512 --hot-share "$4" --input-len 88 --output-len 8 --json "$file" >/dev/null
  hits=$(($(metric vllm:prefix_cache_hits_total) - hits))
  queries=$(($(metric vllm:prefix_cache_queries_total) - queries))
  # Of an ideal cache, the first request of all is the only one that does not find the prefix.
  json "$file" "(lambda w, h, first: '| $policy | $1 | %d | %.1f %% | %s | %s | %.0f | %.0f |' % (
    w['ok'], 100 * $hits / max(1, $queries),
    '-' if not h else '%d' % h['ok'],
    '-' if not h else '%.1f %%' % (100 * h['cached'] / max(1, 512 * (h['ok'] - first))),
    1e3 * h['ttft_p50'] if h else float('nan'), 1e3 * h['ttft_p99'] if h else float('nan')))(
    d['workloads'][0], d['workloads'][0].get('hot'), $( [ "$1" = mixed ] && echo 1 || echo 0 ))"
}

echo "| policy | phase | answered | prompt tokens found | with the prefix | of the ideal | their TTFT p50 ms | p99 ms |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
for policy in "${policies[@]}"; do
  flags=(--kv-blocks 94 --block-size 16 --seed 1 --log-level warn)
  if has_flag --evict; then flags+=(--evict "$policy"); else policy="(none)"; fi
  start_server "${MODEL:-demo}" "${flags[@]}"
  phase mixed 0 200 0.5
  phase one-offs 200 50 0
  phase again 250 20 1
  evicted=$(metric kvasir_evictions_total)
  echo "  $policy: blocks evicted $evicted, evicted and wanted again $(metric kvasir_evicted_then_wanted_total)" >&2
  stop_server
  has_flag --evict || break
done
