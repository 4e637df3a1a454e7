// kvasir chat MODEL
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "apps/chat_session.h"
#include "apps/command.h"
#include "apps/flag_values.h"
#include "apps/line_reader.h"
#include "apps/loaded_model.h"
#include "apps/log.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

// Set by Ctrl-C: stops the answer that is being written, or the line that is being typed.
std::atomic<bool> interrupted{false};

void OnInterrupt(int) {
  interrupted = true;
}

void CatchInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART, so that a waiting read comes back
  sigaction(SIGINT, &action, nullptr);
}

struct ChatFlags {
  ModelFlags model;
  ChatSettings chat;
  std::string prompt;
  std::string log_level = "warn";
};

void AddSamplingFlags(CLI::App* app, ChatFlags* flags) {
  SamplingParams* sampling = &flags->chat.sampling;
  sampling->temperature = 0.2F;  // small models wander off when warmer
  sampling->top_p = 0.9F;
  sampling->max_tokens = 0;
  app->add_option("--temperature,--temp", sampling->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--top-p", sampling->top_p)->check(CLI::Range(1e-6, 1.0))->capture_default_str();
  app->add_option("--top-k", sampling->top_k, "0: off")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app->add_option("--min-p", sampling->min_p)->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app->add_option("--repetition-penalty", sampling->repetition_penalty)
      ->check(CLI::Range(1e-3, 2.0))
      ->capture_default_str();
  app->add_option("--max-tokens", sampling->max_tokens,
                  "longest answer (default: the rest of the context)")
      ->check(CLI::Range(1, 2'000'000'000));
  app->add_option("--stop", flags->chat.stop, "text that ends an answer; may be repeated");
  app->add_option_function<uint64_t>(
         "--seed", [sampling](uint64_t seed) { sampling->seed = seed; },
         "sampling seed (default: random)")
      ->check(SeedRange());
}

void AddFlags(CLI::App* app, ChatFlags* flags) {
  AddModelFlags(app, &flags->model);
  app->add_option("--system", flags->chat.system, "system prompt");
  app->add_option("--prompt", flags->prompt, "one question: answer it and end");
  AddSamplingFlags(app, flags);
  app->add_option("--log-level", flags->log_level, "trace, debug, info, warn, error, off")
      ->capture_default_str();
  AddConfigFlag(app);
}

// Lines until the end of input or /exit. Returns the exit code.
int Converse(ChatSession* session, bool terminal) {
  LineReader reader(STDIN_FILENO, &interrupted);
  bool failed = false;
  for (;;) {
    interrupted = false;
    if (terminal) std::cerr << "> " << std::flush;
    const LineReader::Line line = reader.Next();
    if (line.kind == LineReader::Kind::kInterrupted) {
      std::cerr << "\n(Ctrl-D or /exit ends)" << std::endl;
      continue;
    }
    if (line.kind == LineReader::Kind::kEnd) {
      if (terminal) std::cerr << std::endl;
      return failed ? kExitFailure : kExitOk;
    }
    interrupted = false;
    const ChatSession::After after = session->Handle(line.text, &interrupted);
    if (after == ChatSession::After::kFailed) failed = !terminal;
    if (after == ChatSession::After::kExit) return failed ? kExitFailure : kExitOk;
  }
}

}  // namespace

int ChatCommand(int argc, const char* const* argv) {
  CLI::App app("Talk to a model in the terminal. /help there shows what it knows.", "kvasir chat");
  app.footer(
      "Examples:\n  kvasir chat demo --system 'You answer in one sentence.'\n"
      "  echo 'Why is the sky blue?' | kvasir chat demo --temperature 0");
  ChatFlags flags;
  AddFlags(&app, &flags);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  if (const Status status = SetUpLog(flags.log_level, "text"); !status.ok()) return Fail(status);
  if (const size_t bad = FindInvalidUtf8(flags.chat.system); bad != std::string::npos) {
    return Fail(InvalidArgument("--system is not valid UTF-8 at byte " + std::to_string(bad)));
  }
  flags.model.engine.max_num_seqs = 1;
  const Result<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(flags.model, nullptr);
  if (!model.ok()) return Fail(model.status());

  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  flags.chat.show_stats = terminal;
  ChatSession session((*model)->served(), flags.chat, std::cout, std::cerr);
  CatchInterrupt();
  if (!flags.prompt.empty()) {
    return session.Ask(flags.prompt, &interrupted) ? kExitOk : kExitFailure;
  }
  if (terminal)
    std::cerr << (*model)->Describe() << "\n/help shows the commands, Ctrl-D ends" << std::endl;
  return Converse(&session, terminal);
}

}  // namespace kvasir
