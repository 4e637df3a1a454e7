// CacheRunner: one call of /v1/kvcache* from start to answer: computes a prompt if the call warms
// it, gives the engine its command, answers. Lives on its connection's strand.
#pragma once

#include <memory>
#include <optional>

#include "server/cache_call.h"
#include "server/cache_report.h"
#include "server/generation.h"
#include "server/http_message.h"

namespace kvasir {

struct PreparedCacheCall {
  std::optional<GenerationParams> warm;  // first, if there
  std::optional<CacheRequest> request;   // then
  CacheReportOptions report;
};

class CacheRunner : public Exchange, public std::enable_shared_from_this<CacheRunner> {
 public:
  // model's parts and metrics outlive the runner.
  CacheRunner(const ServedModel& model, ServerMetrics* metrics, PreparedCacheCall prepared,
              std::shared_ptr<ResponseWriter> writer);

  void Start();
  void OnClientGone() override;

 private:
  class Sink;
  void OnEvents(std::vector<TokenEvent> events);
  void Command();
  void OnReply(CacheReply reply);
  Json WarmJson() const;
  void Answer(const Json& body);
  void End(HttpResponse response);

  ServedModel model_;
  ServerMetrics* metrics_;
  PreparedCacheCall prepared_;
  std::shared_ptr<ResponseWriter> writer_;  // null once ended
  std::unique_ptr<Generation> generation_;
};

}  // namespace kvasir
