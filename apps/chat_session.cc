#include "apps/chat_session.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "text/tokenizer.h"

namespace kvasir {
namespace {

constexpr const char* kHelp =
    "/reset   forget the conversation (the system prompt stays)\n"
    "/stats   tokens, speed and the KV pool\n"
    "/exit    end; so does Ctrl-D\n"
    "Ctrl-C   stops the answer, not the program\n"
    "A line that ends in \\ goes on in the next line.\n";

std::string Rate(int64_t tokens, double ms) {
  if (tokens <= 0 || ms <= 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(tokens) * 1e3 / ms);
  return text;
}

}  // namespace

ChatSession::ChatSession(const ServedModel& model, ChatSettings settings, std::ostream& out,
                         std::ostream& notes)
    : model_(model), settings_(std::move(settings)), out_(out), notes_(notes) {}

ChatSession::After ChatSession::Handle(const std::string& message,
                                       const std::atomic<bool>* cancel) {
  const size_t start = message.find_first_not_of(" \t\n");
  if (start == std::string::npos) return After::kGoOn;
  std::string command = message.substr(start);
  command.resize(command.find_last_not_of(" \t\n") + 1);
  if (command[0] != '/' || command.find(' ') != std::string::npos) {
    return Ask(message, cancel) ? After::kGoOn : After::kFailed;
  }
  if (command == "/exit" || command == "/quit") return After::kExit;
  if (command == "/help") {
    notes_ << kHelp << std::flush;
  } else if (command == "/reset") {
    history_.clear();
    notes_ << "(forgotten)" << std::endl;
  } else if (command == "/stats") {
    PrintStats();
  } else {
    notes_ << "unknown command " << command << "; /help shows what there is" << std::endl;
    return After::kFailed;
  }
  return After::kGoOn;
}

std::string ChatSession::MessagesJson() const {
  nlohmann::json messages = nlohmann::json::array();
  if (!settings_.system.empty())
    messages.push_back({{"role", "system"}, {"content", settings_.system}});
  for (const Message& message : history_) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool ChatSession::Ask(const std::string& question, const std::atomic<bool>* cancel) {
  if (const size_t bad = FindInvalidUtf8(question); bad != std::string::npos) {
    notes_ << "the message is not valid UTF-8 at byte " << bad << std::endl;
    return false;
  }
  history_.push_back({"user", question});
  ChatTurn turn;
  turn.messages_json = MessagesJson();
  turn.sampling = settings_.sampling;
  turn.stop = settings_.stop;
  const auto show = [this](std::string_view text) {
    out_ << text << std::flush;
    return out_.good();
  };
  const Result<ChatTurnResult> result = RunChat(model_, turn, show, cancel);
  if (!result.ok()) {
    history_.pop_back();
    notes_ << "kvasir: " << result.status().message();
    if (result.status().code() == StatusCode::kInvalidArgument && !history_.empty()) {
      notes_ << " (/reset forgets the conversation)";
    }
    notes_ << std::endl;
    return false;
  }
  out_ << std::endl;
  if (result->finish == FinishReason::kCancelled) notes_ << "(stopped)" << std::endl;
  history_.push_back({"assistant", result->text});
  ++answers_;
  const GenerationUsage& usage = result->usage;
  total_.prompt_tokens += usage.prompt_tokens;
  total_.completion_tokens += usage.completion_tokens;
  total_.cached_tokens += usage.cached_tokens;
  total_.prefill_ms += usage.prefill_ms;
  decode_tokens_ += std::max<int64_t>(0, usage.completion_tokens - 1);
  decode_ms_ += result->total_ms - usage.queue_ms - usage.prefill_ms;
  if (settings_.show_stats) PrintAnswerStats(*result);
  return true;
}

void ChatSession::PrintAnswerStats(const ChatTurnResult& result) const {
  const GenerationUsage& usage = result.usage;
  const double decode_ms = result.total_ms - usage.queue_ms - usage.prefill_ms;
  notes_ << "\x1b[2m[" << usage.completion_tokens << " tokens, "
         << Rate(usage.completion_tokens - 1, decode_ms) << "/s; prompt " << usage.prompt_tokens
         << " (" << usage.cached_tokens << " cached), first token after "
         << static_cast<int64_t>(usage.queue_ms + usage.prefill_ms) << " ms"
         << (result.finish == FinishReason::kLength ? "; cut at the length limit" : "")
         << "]\x1b[0m" << std::endl;
}

void ChatSession::PrintStats() const {
  const WorkerInfo& info = model_.worker->info();
  const WorkerStats stats = model_.worker->stats();
  notes_ << answers_ << " answers, " << total_.completion_tokens << " tokens written at "
         << Rate(decode_tokens_, decode_ms_) << "/s; " << total_.prompt_tokens << " prompt tokens ("
         << total_.cached_tokens << " cached) at "
         << Rate(total_.prompt_tokens - total_.cached_tokens, total_.prefill_ms) << "/s\n"
         << history_.size() << " messages in the conversation, context " << model_.ContextTokens()
         << " tokens\n"
         << "KV pool: " << stats.books.total << " blocks of " << info.block_tokens << " tokens, "
         << stats.books.total - stats.books.free - stats.books.evictable << " in use, "
         << stats.books.evictable << " cached; " << info.kv_bytes_per_token << " bytes a token, K "
         << info.kv_type_k << ", V " << info.kv_type_v << std::endl;
}

}  // namespace kvasir
