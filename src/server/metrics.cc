#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <cstdio>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;
using prometheus::ClientMetric;
using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = Histogram::BucketBoundaries;
using Labels = std::vector<std::pair<std::string, std::string>>;

// Seconds and tokens as vLLM's dashboards expect them, with finer small steps where a CPU engine
// lives.
const Buckets kFirstTokenBuckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                    20,    40,    80,   160,  640,  2560};
const Buckets kInterTokenBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                    5,     7.5,    10,    20,   40,    80};
const Buckets kRequestBuckets = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                                 15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
const Buckets kTokenBuckets = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                               1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
const Buckets kStepTokenBuckets = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const Buckets kStepBuckets = {1e-6, 5e-6,  1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3,
                              0.01, 0.025, 0.05, 0.1,  0.25, 0.5,  1,    5};

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

std::vector<MetricFamily> WorkerFamilies(const std::string& model, const Worker& worker) {
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
  out.Count("vllm:num_preemptions_total", "Sequences preempted", stats.preemptions);
  out.Count("kvasir_preemptions_total", "Sequences preempted, by what became of their blocks",
            stats.preemptions, {{"mode", "recompute"}});
  out.Count("kvasir_preemptions_total", "", 0, {{"mode", "swap"}});
  out.Count("kvasir_prefill_rows_total", "Prompt rows run, recomputation included",
            stats.computed_prefill_tokens);
  out.Count("kvasir_sampled_tokens_total",
            "Tokens sampled by the engine, with those past a stop string or after a client left",
            stats.generation_tokens);
  out.Count("kvasir_steps_total", "Engine steps", stats.steps);
  return out.Take();
}

const char* FinishLabel(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kNone:
    case FinishReason::kError:
      break;
  }
  return "error";
}

}  // namespace

struct ServerMetrics::Rep {
  explicit Rep(const std::string& name) : model(name), labels({{"model_name", name}}) {}

  Counter& MakeCounter(const char* name, const char* help, prometheus::Labels more = {}) {
    more.insert(labels.begin(), labels.end());
    return BuildCounter().Name(name).Help(help).Register(registry).Add(more);
  }
  Histogram& MakeHistogram(const char* name, const char* help, const Buckets& buckets,
                           prometheus::Labels more = {}) {
    more.insert(labels.begin(), labels.end());
    return BuildHistogram().Name(name).Help(help).Register(registry).Add(more, buckets);
  }
  Counter& Success(const char* reason) {
    return MakeCounter("vllm:request_success_total", "Requests ended, by how",
                       {{"finished_reason", reason}});
  }
  Histogram& StepPart(const char* part) {
    return MakeHistogram("kvasir_step_seconds", "Time of the parts of a step", kStepBuckets,
                         {{"part", part}});
  }

  std::string model;
  prometheus::Labels labels;
  // Merge: asking again for a family gives the one that is there.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};

  Counter& prompt =
      MakeCounter("vllm:prompt_tokens_total", "Prompt tokens of requests whose first token came");
  Counter& generated =
      MakeCounter("vllm:generation_tokens_total", "Tokens generated, as usage counts them");
  Counter& queries =
      MakeCounter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache");
  Counter& hits = MakeCounter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache");
  Counter& computed =
      MakeCounter("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from",
                  {{"source", "local_compute"}});
  Counter& cached =
      MakeCounter("vllm:prompt_tokens_by_source_total", "", {{"source", "local_cache_hit"}});
  Counter& stop = Success("stop");
  Counter& length = Success("length");
  Counter& abort = Success("abort");
  Counter& error = Success("error");
  Histogram& first_token = MakeHistogram("vllm:time_to_first_token_seconds",
                                         "Arrival to first token", kFirstTokenBuckets);
  Histogram& inter_token = MakeHistogram("vllm:inter_token_latency_seconds",
                                         "Between two tokens of a choice", kInterTokenBuckets);
  Histogram& e2e =
      MakeHistogram("vllm:e2e_request_latency_seconds", "Arrival to end", kRequestBuckets);
  Histogram& queue = MakeHistogram("vllm:request_queue_time_seconds", "Arrival to first scheduled",
                                   kRequestBuckets);
  Histogram& prompt_tokens =
      MakeHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request", kTokenBuckets);
  Histogram& generation_tokens = MakeHistogram("vllm:request_generation_tokens",
                                               "Tokens generated for a request", kTokenBuckets);
  Histogram& step_tokens =
      MakeHistogram("vllm:iteration_tokens_total", "Tokens in a step", kStepTokenBuckets);
  Histogram& schedule = StepPart("schedule");
  Histogram& build = StepPart("build");
  Histogram& run = StepPart("run");
  Histogram& sample = StepPart("sample");
  Histogram& commit = StepPart("commit");
};

ServerMetrics::ServerMetrics(const std::string& model_name)
    : rep_(std::make_unique<Rep>(model_name)) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnStep(const StepStats& step, const WorkerStats& /*stats*/) {
  if (step.rows == 0) return;  // nothing ran: a step that only cancelled or refused
  constexpr double kNs = 1e-9;
  rep_->step_tokens.Observe(step.rows);
  rep_->schedule.Observe(static_cast<double>(step.schedule_ns) * kNs);
  rep_->build.Observe(static_cast<double>(step.build_ns) * kNs);
  rep_->run.Observe(static_cast<double>(step.run_ns) * kNs);
  rep_->sample.Observe(static_cast<double>(step.sample_ns) * kNs);
  rep_->commit.Observe(static_cast<double>(step.commit_ns) * kNs);
}

void ServerMetrics::CountPrompt(int64_t prompt_tokens, int64_t cached_tokens) {
  rep_->prompt.Increment(static_cast<double>(prompt_tokens));
  rep_->queries.Increment(static_cast<double>(prompt_tokens));
  rep_->hits.Increment(static_cast<double>(cached_tokens));
  rep_->computed.Increment(static_cast<double>(prompt_tokens - cached_tokens));
  rep_->cached.Increment(static_cast<double>(cached_tokens));
}

void ServerMetrics::CountToken() {
  rep_->generated.Increment();
}
void ServerMetrics::ObserveFirstToken(double seconds) {
  rep_->first_token.Observe(seconds);
}
void ServerMetrics::ObserveInterToken(double seconds) {
  rep_->inter_token.Observe(seconds);
}

void ServerMetrics::ObserveRequest(const RequestRecord& record) {
  const std::string label = FinishLabel(record.finish);
  Counter& counter = label == "stop"     ? rep_->stop
                     : label == "length" ? rep_->length
                     : label == "abort"  ? rep_->abort
                                         : rep_->error;
  counter.Increment();
  if (record.e2e_s >= 0) rep_->e2e.Observe(record.e2e_s);
  if (record.queue_s >= 0) rep_->queue.Observe(record.queue_s);
  if (!record.prefilled) return;
  rep_->prompt_tokens.Observe(static_cast<double>(record.prompt_tokens));
  rep_->generation_tokens.Observe(static_cast<double>(record.generation_tokens));
}

void ServerMetrics::CountHttp(int status) {
  rep_->MakeCounter("kvasir_http_responses_total",
                    "HTTP answers by status; 499: the client left first",
                    {{"code", std::to_string(status)}})
      .Increment();
}

std::string ServerMetrics::Serialize(const Worker* worker) const {
  std::vector<MetricFamily> families;
  if (worker != nullptr) families = WorkerFamilies(rep_->model, *worker);
  for (MetricFamily& family : rep_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kvasir
