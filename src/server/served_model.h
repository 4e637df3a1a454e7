// What a server or a terminal session serves: one model with its engine, tokenizer and chat
// template. Plain pointers; the owner (apps/) keeps everything alive longer than every Server and
// every Generation that uses it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/worker.h"
#include "env/clock.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

struct ServedModel {
  std::string name;  // as in /v1/models; not empty
  Worker* worker = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat is refused with a clear 400
  const Clock* clock = nullptr;                 // the engine's; null: the steady clock
  int64_t created_unix_s = 0;
  int32_t max_model_len = 0;  // prompt + output tokens; 0: worker->info().max_model_len

  // What max_model_len would be if the KV pool were large enough; 0: it is.
  int32_t wanted_model_len = 0;

  int32_t ContextTokens() const {
    return max_model_len > 0 ? max_model_len : worker->info().max_model_len;
  }
};

}  // namespace kvasir
