// Checks of EngineOptions: names the flag and its limits.
#include <string>

#include "engine/engine.h"

namespace kvasir {
namespace {

Status CheckInt(const char* flag, int32_t value, int32_t low, int32_t high) {
  if (value >= low && value <= high) return Status::Ok();
  return InvalidArgument(std::string(flag) + " is " + std::to_string(value) + ", must be " +
                             std::to_string(low) + " to " + std::to_string(high),
                         flag);
}

}  // namespace

Status EngineOptions::Validate() const {
  constexpr int32_t kMaxLen = 1 << 24;
  KVASIR_RETURN_IF_ERROR(CheckInt("--max-model-len", max_model_len, 0, kMaxLen));
  KVASIR_RETURN_IF_ERROR(CheckInt("--max-num-seqs", max_num_seqs, 1, 65536));
  KVASIR_RETURN_IF_ERROR(CheckInt("--max-num-batched-tokens", max_num_batched_tokens, 0, 65536));
  KVASIR_RETURN_IF_ERROR(CheckInt("--max-queue", max_queue, 0, 1 << 20));
  if (!(queue_timeout_s > 0 && queue_timeout_s <= 1e9)) {
    return InvalidArgument("--queue-timeout must be more than 0 and at most 1e9 seconds",
                           "--queue-timeout");
  }
  if (!(reserve_blocks >= 0 && reserve_blocks <= 0.9)) {
    return InvalidArgument("--reserve-blocks must be a share from 0 to 0.9", "--reserve-blocks");
  }
  return Status::Ok();
}

}  // namespace kvasir
