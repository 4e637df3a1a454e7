// Checks of EngineOptions: names the flag and its limits.
#include <initializer_list>
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

Status CheckName(const char* flag, const std::string& value,
                 std::initializer_list<const char*> names) {
  std::string list;
  for (const char* name : names) {
    if (value == name) return Status::Ok();
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  return InvalidArgument(std::string(flag) + " is '" + value + "', must be one of " + list, flag);
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
  KVASIR_RETURN_IF_ERROR(CheckName("--evict", evict, {"lru", "fifo", "slru", "s3fifo", "cost"}));
  KVASIR_RETURN_IF_ERROR(CheckName("--preempt", preempt, {"auto", "swap", "recompute"}));
  KVASIR_RETURN_IF_ERROR(
      CheckName("--scheduling-policy", scheduling_policy, {"fcfs", "priority", "prefix"}));
  if (!(itl_target_ms >= 0 && itl_target_ms <= 3.6e6)) {
    return InvalidArgument("--itl-target must be 0 (off) to 3600000 milliseconds", "--itl-target");
  }
  if (!(pin_budget >= 0 && pin_budget <= 1))
    return InvalidArgument("--pin-budget must be a share from 0 to 1", "--pin-budget");
  if (!(tenant_quota >= 0 && tenant_quota <= 1))
    return InvalidArgument("--tenant-quota must be a share from 0 to 1", "--tenant-quota");
  return Status::Ok();
}

}  // namespace kvasir
