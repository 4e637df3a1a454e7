// Puts a served model together on this machine: model, thread pool, arena, CPU runner, engine. What
// `serve`, `chat` and tests start from.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

struct StackOptions {
  std::string model_path;
  int32_t threads = 0;    // 0: physical cores allowed
  std::vector<int> cpus;  // one a thread: each is bound to its own; empty: none is bound
  int32_t block_tokens = 16;
  uint64_t kv_bytes = 0;  // 0: half of free memory, no more than max_num_seqs full contexts need
  int64_t kv_blocks = 0;  // wins over kv_bytes
  // Formats of the cache, or both "auto": what the model's certificates allow at kv_quality.
  std::string kv_type_k = "f16", kv_type_v = "f16";
  std::string kv_quality = "balanced";  // strict, balanced, small
  Precision precision = Precision::kDefault;
  EngineOptions engine;
};

// What is being done ("loading", "studying the model (once)") and how far it is.
using StackProgress = std::function<void(const char* what, double fraction)>;

class CpuStack {
 public:
  static Result<std::unique_ptr<CpuStack>> Make(const StackOptions& options, StepObserver* observer,
                                                const StackProgress& progress = {});
  virtual ~CpuStack() = default;
  virtual Engine& engine() = 0;
  virtual const Model& model() const = 0;
  virtual uint64_t pool_bytes() const = 0;
  // What the log should say about the start, a line each.
  virtual const std::vector<std::string>& notes() const = 0;
};

}  // namespace kvasir
