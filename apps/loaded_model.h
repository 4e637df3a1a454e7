// A model ready to answer: engine stack, tokenizer and chat template, and the flags that say how to
// load it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "apps/cache_flags.h"
#include "apps/kv_flags.h"
#include "apps/thread_flags.h"
#include "base/status.h"
#include "engine/cpu_stack.h"
#include "env/clock.h"
#include "server/served_model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

struct ModelFlags {
  std::string model;  // MODEL as typed
  std::string served_name;
  ThreadFlags threads;
  std::string precision = "default";
  KvFlags kv;
  CacheFlags cache;
  EngineOptions engine;

  // Checks all, and puts the cache's flags into engine.
  Status Complete();
};

// MODEL, --threads, --pin-threads, --precision, --max-model-len, the KV flags and those of the
// prefix cache.
void AddModelFlags(CLI::App* app, ModelFlags* flags);

class LoadedModel {
 public:
  // observer may be null, else it outlives the result. Progress goes to standard error if that is a
  // terminal. The engine's thread runs when this returns.
  static Result<std::unique_ptr<LoadedModel>> Load(ModelFlags flags, StepObserver* observer);
  ~LoadedModel();

  ServedModel served() const;
  Engine& engine() { return stack_->engine(); }
  const CpuStack& stack() const { return *stack_; }
  // What was loaded and how, for the log: "model ..., precision ..., isa ..., threads ..., KV pool
  // ...".
  std::string Describe() const;

 private:
  LoadedModel() = default;
  std::string name_;
  int32_t wanted_model_len_ = 0;
  std::unique_ptr<CpuStack> stack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;  // after tokenizer_, which it refers to
  SteadyClock clock_;
};

}  // namespace kvasir
