// CallRunner: one call of /v1/completions or /v1/chat/completions from submit to last byte,
// streamed or plain. Lives on its connection's strand; the engine's events are posted there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/answer_writer.h"
#include "server/api_call.h"
#include "server/generation.h"
#include "server/http_message.h"

namespace kvasir {

struct PreparedCall {
  ApiCall call;
  std::vector<GenerationParams> generations;  // one per prompt
  std::string id;                             // of the answer, with its prefix
};

class CallRunner : public Exchange, public std::enable_shared_from_this<CallRunner> {
 public:
  // model's parts and metrics outlive the runner.
  CallRunner(const ServedModel& model, ServerMetrics* metrics, PreparedCall prepared,
             std::shared_ptr<ResponseWriter> writer);

  // Hands the generations to the engine; on failure answers with the error and gives back those
  // already handed over.
  void Start();
  void OnClientGone() override;

 private:
  class Sink;
  void OnEvents(size_t index, std::vector<TokenEvent> events);
  void Stream(size_t index, const std::vector<ChoiceDelta>& deltas);
  void Collect(size_t index, std::vector<ChoiceDelta> deltas);
  void Finish();
  void Fail(const Status& status);
  int32_t AnswerIndex(size_t index, int32_t choice) const;
  GenerationUsage TotalUsage() const;

  ServedModel model_;
  ServerMetrics* metrics_;
  PreparedCall prepared_;
  std::shared_ptr<ResponseWriter> writer_;  // null once ended
  AnswerWriter answer_;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::vector<bool> begun_;             // generation's first chunks were written
  std::vector<ChoiceDelta> collected_;  // plain answers, by answer index
  bool streaming_ = false;              // the head was sent
};

}  // namespace kvasir
