// ServerMetrics: everything /metrics shows, in Prometheus text. docs/metrics.md lists the names.
//
// Counters and histograms are fed as things happen; gauges are read from the worker at every
// scrape, so they are right also when the engine sleeps. All of the cache's and the scheduler's,
// the counters too, are of one snapshot, so that sums over them hold. Every accepted request ends
// in exactly one vllm:request_success_total. Threads: every method from any thread. Give it to
// Engine::Make as its StepObserver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/request.h"
#include "engine/worker.h"

namespace kvasir {

// One finished request. Seconds below zero: that moment never came, nothing is observed for it.
struct RequestRecord {
  FinishReason finish = FinishReason::kNone;
  double e2e_s = -1;
  double queue_s = -1;
  bool prefilled = false;  // at least one token came: the token counts below are observed
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
};

class ServerMetrics : public StepObserver {
 public:
  // evict: the policy's name, a label of kvasir_evictions_total.
  explicit ServerMetrics(const std::string& model_name, const std::string& evict = "cost");
  ~ServerMetrics() override;
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  void OnStep(const StepStats& step, const WorkerStats& stats) override;

  void CountPrompt(int64_t prompt_tokens, int64_t cached_tokens);  // its first token came
  void CountToken();
  void ObserveFirstToken(double seconds);  // since arrival
  void ObserveInterToken(double seconds);
  void ObserveRequest(const RequestRecord& record);
  void CountHttp(int status);

  // The whole exposition. worker's gauges and books are read now; null: left out.
  std::string Serialize(const Worker* worker) const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace kvasir
