#include "server/worker_metrics.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace kvasir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

std::string FormatNumber(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

// Families that are a snapshot of the worker, written at scrape time.
class Snapshot {
 public:
  explicit Snapshot(std::string model) : model_(std::move(model)) {}

  void Add(MetricType type, const std::string& name, const std::string& help, double value,
           const Labels& labels = {}) {
    if (families_.empty() || families_.back().name != name) {
      MetricFamily family;
      family.name = name;
      family.help = help;
      family.type = type;
      families_.push_back(std::move(family));
    }
    ClientMetric metric;
    metric.label.push_back({"model_name", model_});
    for (const auto& [key, text] : labels) metric.label.push_back({key, text});
    if (type == MetricType::Counter)
      metric.counter.value = value;
    else
      metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const std::string& name, const std::string& help, double value,
             const Labels& labels = {}) {
    Add(MetricType::Gauge, name, help, value, labels);
  }
  void Count(const std::string& name, const std::string& help, uint64_t value,
             const Labels& labels = {}) {
    Add(MetricType::Counter, name, help, static_cast<double>(value), labels);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::string model_;
  std::vector<MetricFamily> families_;
};

void AddBooks(const WorkerInfo& info, const WorkerStats& stats, Snapshot* out) {
  const PoolBooks& books = stats.books;
  const std::string blocks_help = "KV blocks by state; the states add up to kvasir_kv_blocks_total";
  const std::array<std::pair<const char*, int64_t>, 6> states = {{{"free", books.free},
                                                                  {"reserved", books.reserved},
                                                                  {"filling", books.filling},
                                                                  {"pinned", books.pinned},
                                                                  {"evictable", books.evictable},
                                                                  {"inflight", books.inflight}}};
  for (const auto& [state, blocks] : states)
    out->Gauge("kvasir_kv_blocks", blocks_help, static_cast<double>(blocks), {{"state", state}});
  out->Gauge("kvasir_kv_blocks_total", "KV blocks in the hot pool",
             static_cast<double>(books.total));
  const int64_t busy = books.total - books.free - books.evictable;
  out->Gauge("vllm:kv_cache_usage_perc", "Share of KV blocks held by running requests, 0 to 1",
             books.total > 0 ? static_cast<double>(busy) / static_cast<double>(books.total) : 0.0);
  out->Gauge("kvasir_kv_bytes_per_token", "Bytes one token takes in the KV cache",
             info.kv_bytes_per_token);
  const int64_t waste = stats.slots_allocated - stats.slots_used;
  out->Gauge("kvasir_kv_waste_ratio",
             "Token slots of held blocks that hold no token, over all of them",
             stats.slots_allocated > 0
                 ? static_cast<double>(waste) / static_cast<double>(stats.slots_allocated)
                 : 0.0);
}

// One series per reason, zeros too: hits and misses add up to what was looked up.
void AddCacheTokens(const CacheCounts& cache, Snapshot* out) {
  const char* name = "kvasir_cache_tokens_total";
  out->Count(name, "Prompt tokens looked up, by where they were found or why they were not",
             cache.hits, {{"result", "hit"}, {"tier", "hot"}});
  for (int i = 0; i < kMissReasons; ++i)
    out->Count(name, "", cache.misses[static_cast<size_t>(i)],
               {{"result", "miss"}, {"reason", MissReasonName(static_cast<MissReason>(i))}});
  out->Count("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache",
             cache.queries);
  out->Count("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache", cache.hits);
}

void AddCache(const WorkerStats& stats, const std::string& evict, Snapshot* out) {
  const CacheCounts& cache = stats.cache;
  AddCacheTokens(cache, out);
  for (int i = 0; i < kEvictReasons; ++i)
    out->Count("kvasir_evictions_total", "KV blocks that left the cache, by why",
               cache.evictions[static_cast<size_t>(i)],
               {{"policy", evict}, {"reason", EvictReasonName(static_cast<EvictReason>(i))}});
  out->Count("kvasir_evicted_then_wanted_total",
             "Evicted KV blocks that were asked for again soon: the sign of thrashing",
             cache.evicted_then_wanted);
  out->Count("kvasir_merged_blocks_total", "KV blocks computed twice and merged into one",
             cache.merged);
  out->Count("kvasir_copied_blocks_total",
             "KV blocks copied because a hit ended inside them or a shared one was written",
             cache.copied);
  out->Count("kvasir_swapped_blocks_total", "KV blocks copied between pool and host memory",
             cache.swapped_out, {{"direction", "out"}});
  out->Count("kvasir_swapped_blocks_total", "", cache.swapped_in, {{"direction", "in"}});
  out->Gauge("kvasir_cached_blocks", "KV blocks in the prefix index",
             static_cast<double>(cache.cached_blocks));
  out->Gauge("kvasir_pinned_blocks", "KV blocks held by /v1/kvcache/pin",
             static_cast<double>(cache.pinned_by_name));
  out->Count("kvasir_prefill_tokens_saved_total",
             "Tokens found in the cache instead of computed, resumed requests included",
             stats.prefill_tokens_saved);
  out->Add(MetricType::Counter, "kvasir_prefill_seconds_saved_total",
           "The time these would have taken, at the measured speed of prefill",
           stats.prefill_seconds_saved);
}

void AddPreemptions(const WorkerStats& stats, Snapshot* out) {
  const uint64_t swap = std::min(stats.preemptions_swap, stats.preemptions);
  out->Count("vllm:num_preemptions_total", "Sequences preempted", stats.preemptions);
  out->Count("kvasir_preemptions_total", "Sequences preempted, by what became of their blocks",
             stats.preemptions - swap, {{"mode", "recompute"}});
  out->Count("kvasir_preemptions_total", "", swap, {{"mode", "swap"}});
}

}  // namespace

std::vector<MetricFamily> WorkerFamilies(const std::string& model, const std::string& evict,
                                         const Worker& worker) {
  const WorkerInfo& info = worker.info();
  const WorkerStats stats = worker.stats();
  Snapshot out(model);
  out.Gauge("vllm:num_requests_running", "Sequences running", static_cast<double>(stats.running));
  out.Gauge("vllm:num_requests_waiting", "Requests waiting", static_cast<double>(stats.waiting));
  AddBooks(info, stats, &out);
  out.Gauge("vllm:cache_config_info", "The KV cache's configuration; always 1", 1,
            {{"block_size", std::to_string(info.block_tokens)},
             {"num_blocks", std::to_string(info.pool_blocks)},
             {"cache_dtype_k", info.kv_type_k},
             {"cache_dtype_v", info.kv_type_v},
             {"bytes_per_token", FormatNumber(info.kv_bytes_per_token)}});
  AddCache(stats, evict, &out);
  AddPreemptions(stats, &out);
  out.Count("kvasir_prefill_rows_total", "Prompt rows run, recomputation included",
            stats.computed_prefill_tokens);
  out.Count("kvasir_sampled_tokens_total",
            "Tokens sampled by the engine, with those past a stop string or after a client left",
            stats.generation_tokens);
  out.Count("kvasir_steps_total", "Engine steps", stats.steps);
  return out.Take();
}

}  // namespace kvasir
