#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "server/worker_metrics.h"

namespace kvasir {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Histogram;
using prometheus::MetricFamily;
using Buckets = Histogram::BucketBoundaries;

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
  Rep(const std::string& name, const std::string& policy)
      : model(name), evict(policy), labels({{"model_name", name}}) {}

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
  std::string evict;
  prometheus::Labels labels;
  // Merge: asking again for a family gives the one that is there.
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};

  Counter& prompt =
      MakeCounter("vllm:prompt_tokens_total", "Prompt tokens of requests whose first token came");
  Counter& generated =
      MakeCounter("vllm:generation_tokens_total", "Tokens generated, as usage counts them");
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

ServerMetrics::ServerMetrics(const std::string& model_name, const std::string& evict)
    : rep_(std::make_unique<Rep>(model_name, evict)) {}
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
  if (worker != nullptr) families = WorkerFamilies(rep_->model, rep_->evict, *worker);
  for (MetricFamily& family : rep_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kvasir
