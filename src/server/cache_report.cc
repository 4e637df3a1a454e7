#include "server/cache_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace kvasir {
namespace {

Json BooksJson(const PoolBooks& books) {
  return {{"total", books.total},      {"free", books.free},     {"reserved", books.reserved},
          {"filling", books.filling},  {"pinned", books.pinned}, {"evictable", books.evictable},
          {"inflight", books.inflight}};
}

double Ratio(double part, double whole) {
  return whole > 0 ? std::round(part / whole * 1e6) / 1e6 : 0.0;
}

Json TokensJson(const CacheCounts& counts) {
  std::array<uint64_t, kMissReasons> misses = counts.misses;
  const auto at = [&misses](MissReason reason) -> uint64_t& {
    return misses[static_cast<size_t>(reason)];
  };
  at(MissReason::kCold) += at(MissReason::kSalt);
  Json reasons = Json::object();
  for (int i = 0; i < kMissReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    if (reason != MissReason::kSalt) reasons[MissReasonName(reason)] = at(reason);
  }
  Json out = {{"looked_up", counts.queries},
              {"hit", {{"hot", counts.hits}, {"ram", 0}, {"disk", 0}, {"peer", 0}}}};
  out["hit_ratio"] = Ratio(static_cast<double>(counts.hits), static_cast<double>(counts.queries));
  out["miss"] = std::move(reasons);
  return out;
}

Json EvictionsJson(const CacheCounts& counts) {
  Json out = Json::object();
  for (int i = 0; i < kEvictReasons; ++i)
    out[EvictReasonName(static_cast<EvictReason>(i))] = counts.evictions[static_cast<size_t>(i)];
  return out;
}

// The share, and never so much that the longest sequence would not fit beside: as the engine's.
int64_t PinBudget(double share, const WorkerInfo& info, int64_t total) {
  const int64_t block = std::max(info.block_tokens, 1);
  const int64_t longest = (info.max_model_len + block - 1) / block;
  return std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(total)), 0,
                             std::max<int64_t>(0, total - longest));
}

Json PrefixesJson(const CacheReply& reply, const ServedModel& model, bool texts) {
  Json out = Json::array();
  for (const HotPrefix& prefix : reply.hottest) {
    Json entry = {{"tokens", prefix.tokens}, {"hits", prefix.hits}, {"holders", prefix.holders}};
    const bool shown = texts && !prefix.head.empty();
    entry["ends_with"] = shown ? Json(model.tokenizer->Decode(prefix.head, false)) : Json(nullptr);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

Json PinJson(const PinInfo& pin, int64_t now_ns, bool with_session) {
  constexpr double kNsPerMs = 1e6;
  Json out = {{"id", pin.id}, {"tokens", pin.tokens}, {"blocks", pin.blocks}};
  if (pin.expires_ns == INT64_MAX) {
    out["expires_in_s"] = nullptr;
  } else {
    const auto left = static_cast<double>(std::max<int64_t>(pin.expires_ns - now_ns, 0));
    out["expires_in_s"] = std::round(left / kNsPerMs) / 1e3;
  }
  out["session"] = with_session && !pin.session.empty() ? Json(pin.session) : Json(nullptr);
  return out;
}

Json ResetJson(const ResetInfo& reset) {
  return {{"object", "kvcache.reset"},
          {"freed_blocks", reset.freed_blocks},
          {"in_use_blocks", reset.in_use_blocks},
          {"pinned_blocks", reset.pinned_blocks}};
}

Json CacheStateJson(const CacheReply& reply, const ServedModel& model,
                    const CacheReportOptions& options) {
  const WorkerInfo& info = model.worker->info();
  const CacheCounts& counts = reply.counts;
  const double total = static_cast<double>(reply.books.total);
  Json out = {{"object", "kvcache"}, {"model", model.name}, {"evict", reply.evict}};
  out["block_tokens"] = info.block_tokens;
  out["bytes_per_token"] = info.kv_bytes_per_token;
  out["kv_format"] = {{"k", info.kv_type_k},
                      {"v", info.kv_type_v},
                      {"verdict", info.kv_verdict},
                      {"failed", info.kv_failed}};
  out["blocks"] = BooksJson(reply.books);
  out["cached_blocks"] = counts.cached_blocks;
  const int64_t waste = reply.slots_allocated - reply.slots_used;
  out["slots"] = {{"allocated", reply.slots_allocated},
                  {"used", reply.slots_used},
                  {"waste_ratio",
                   Ratio(static_cast<double>(waste), static_cast<double>(reply.slots_allocated))}};
  out["tokens"] = TokensJson(counts);
  out["evictions"] = EvictionsJson(counts);
  out["evicted_then_wanted"] = counts.evicted_then_wanted;
  out["merged_blocks"] = counts.merged;
  out["copied_blocks"] = counts.copied;
  out["swapped_blocks"] = {{"out", counts.swapped_out}, {"in", counts.swapped_in}};
  out["pinning"] = {{"budget_blocks", PinBudget(options.pin_budget, info, reply.books.total)},
                    {"pinned_blocks", counts.pinned_by_name}};
  out["tenant_quota_blocks"] = static_cast<int64_t>(options.tenant_quota * total);
  if (!options.everything) return out;
  Json pins = Json::array();
  for (const PinInfo& pin : reply.pins) pins.push_back(PinJson(pin, reply.now_ns, options.texts));
  out["pins"] = std::move(pins);
  Json owners = Json::array();
  for (const OwnerInfo& owner : reply.owners)
    if (owner.blocks > 0) owners.push_back({{"name", owner.name}, {"blocks", owner.blocks}});
  out["owners"] = std::move(owners);
  out["hottest"] = PrefixesJson(reply, model, options.texts);
  return out;
}

}  // namespace kvasir
