// The conversation of `kvasir chat`: history, commands, figures.
#pragma once

#include <atomic>
#include <ostream>
#include <string>
#include <vector>

#include "server/chat_turn.h"
#include "server/served_model.h"

namespace kvasir {

struct ChatSettings {
  std::string system;  // "": none
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool show_stats = false;  // one line after each answer
};

class ChatSession {
 public:
  enum class After { kGoOn, kFailed, kExit };

  // Answers go to `out`, everything else to `notes`.
  ChatSession(const ServedModel& model, ChatSettings settings, std::ostream& out,
              std::ostream& notes);

  // One message: a command (/help, /reset, /stats, /exit) or a question.
  After Handle(const std::string& message, const std::atomic<bool>* cancel);
  // Streams the answer. False if there was none; the question is then not kept in the history. A
  // stopped answer is kept as far as it came.
  bool Ask(const std::string& question, const std::atomic<bool>* cancel);

 private:
  struct Message {
    std::string role, content;
  };
  std::string MessagesJson() const;
  void PrintStats() const;
  void PrintAnswerStats(const ChatTurnResult& result) const;

  ServedModel model_;
  ChatSettings settings_;
  std::ostream& out_;
  std::ostream& notes_;
  std::vector<Message> history_;
  int64_t answers_ = 0;
  GenerationUsage total_;
  double decode_ms_ = 0;       // of all answers, first token to last
  int64_t decode_tokens_ = 0;  // tokens after the first
};

}  // namespace kvasir
