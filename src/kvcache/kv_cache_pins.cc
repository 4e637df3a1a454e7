// Hints, pins, sessions, reset, expiry.
#include <algorithm>

#include "base/check.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {
namespace {
constexpr size_t kSessionsMost = 65536;
constexpr size_t kPinsMost = 1024;  // a pin of what is pinned already takes no budget
constexpr int kRareHits = 16;
constexpr int kExpireMost = 4096;  // blocks a call: the rest is due at the next one
}  // namespace

void KvCache::Rep::Mark(const SequenceKv& kv, const std::vector<int32_t>& path,
                        const CacheHint& hint) {
  const auto session = session_ends.find(hint.session);
  const bool live = session != session_ends.end();
  if (live) session->second.turns += session->second.turns < UINT16_MAX ? 1 : 0;
  bool unbranched = true;
  for (size_t i = path.size(); i-- > 0;) {
    CacheNode& node = index.node(path[i]);
    // Its own: made by this request and found by nobody else, or found by no more than this
    // session's turns. What others made or came back for is not its to give away.
    const bool made = static_cast<int32_t>(i) >= kv.found_ && node.hits <= kv.resumed_;
    const bool turns = live && node.retain == Retain::kSession && node.hits < session->second.turns;
    // "Nobody will come back" only lets blocks go first, so it is believed of what hardly anybody
    // came back for, whoever made it, as far as nobody else went another way from there.
    unbranched = unbranched && node.children <= (i + 1 == path.size() ? 0 : 1);
    const bool rare = unbranched && node.hits <= kv.resumed_ + kRareHits;
    if (hint.last_use && (made || turns || rare) && node.retain < Retain::kHigh) {
      node.retain = Retain::kDrop;
    } else if (hint.retain == Retain::kLow) {
      if (made) node.retain = std::min(node.retain, Retain::kLow);
    } else {
      Retain wish = std::max(hint.retain, Retain::kNormal);
      if (hint.session != 0) wish = std::max(wish, Retain::kSession);
      node.retain = std::max(node.retain, wish);
    }
    if ((made || turns) && hint.expires_ns != INT64_MAX) SetExpiry(path[i], hint.expires_ns);
  }
}

void KvCache::Rep::SetExpiry(int32_t n, int64_t at_ns) {
  DropExpiry(n);
  const Expiry key{at_ns, next_expiry++, n};
  expiries.insert(key);
  expiry_of.emplace(n, ExpiryOf{key, index.node(n).hits});
}

void KvCache::Rep::DropExpiry(int32_t n) {
  if (expiry_of.empty()) return;
  const auto found = expiry_of.find(n);
  if (found == expiry_of.end()) return;
  expiries.erase(found->second.key);
  expiry_of.erase(found);
}

// Just listed; its time was over before.
void KvCache::Rep::Overdue(int32_t n) {
  CacheNode& node = index.node(n);
  if (!node.overdue) return;
  node.overdue = false;
  if (node.children == 0) EvictNode(n, EvictReason::kExpired);
}

int64_t KvCache::Rep::PinBudget() const {
  return std::clamp<int64_t>(static_cast<int64_t>(options.pin_budget * pools[0].total()), 0,
                             std::max(0, pools[0].total() - options.pin_spare));
}

int32_t KvCache::pin_budget() const {
  return static_cast<int32_t>(rep_->PinBudget());
}

int64_t KvCache::next_expiry_ns() const {
  const Rep& r = *rep_;
  return std::min(r.pin_ends.empty() ? INT64_MAX : r.pin_ends.begin()->first,
                  r.expiries.empty() ? INT64_MAX : r.expiries.begin()->at_ns);
}

std::vector<int32_t> KvCache::Rep::PathOf(int32_t n) const {
  std::vector<int32_t> path;
  for (; n >= 0; n = index.node(n).parent) path.push_back(n);
  std::reverse(path.begin(), path.end());
  return path;
}

Result<PinInfo> KvCache::Rep::AddPin(int32_t space, std::vector<int32_t> nodes, int32_t tokens,
                                     int64_t expires_ns, std::string session) {
  // The same prefix again: the pin that is there lasts as long as either.
  for (auto& [id, pin] : pin_table) {
    if (pin.space != space || pin.nodes.back() != nodes.back() || pin.info.session != session ||
        pin.info.tokens != tokens)
      continue;
    if (expires_ns > pin.info.expires_ns) {
      DropPinEnd(pin.info);
      pin.info.expires_ns = expires_ns;
      pin_ends.emplace(expires_ns, id);
    }
    pin.times += pin.times < INT32_MAX ? 1 : 0;
    return pin.info;
  }
  if (pin_table.size() >= kPinsMost) {
    return ResourceExhausted("there are " + std::to_string(kPinsMost) +
                             " pins already, the most there may be");
  }
  int64_t more = 0;
  for (const int32_t n : nodes) more += index.node(n).pins == 0 ? 1 : 0;
  const int64_t budget = PinBudget();
  if (counts.pinned_by_name + more > budget) {
    return ResourceExhausted(
        "the pin needs " + std::to_string(more) + " more blocks; " +
        std::to_string(counts.pinned_by_name) + " of at most " + std::to_string(budget) +
        " are pinned (--pin-budget, and the longest sequence must fit beside)");
  }
  for (const int32_t n : nodes) {
    CacheNode& node = index.node(n);
    if (node.pins == UINT16_MAX) return ResourceExhausted("the prefix has too many pins");
  }
  for (const int32_t n : nodes) {
    CacheNode& node = index.node(n);
    if (node.pins++ > 0) continue;
    if (node.listed) Unlist(n);
    if (pools[0].RefCount(n) == 0) ++pinned_unheld;
    pools[0].SetNamedPin(n, true);
    for (size_t s = 0; s < sides.size(); ++s) {
      const int32_t block = sides[s].BlockOf(n);
      if (block < 0) continue;
      if (sides[s].Listed(block)) sides[s].Unlist(block);
      pools[s + 1].SetNamedPin(block, true);
    }
    ++counts.pinned_by_name;
  }
  Pin pin;
  pin.info.id = next_pin++;
  pin.info.tokens = tokens;
  pin.info.blocks = static_cast<int32_t>(nodes.size());
  pin.info.expires_ns = expires_ns;
  pin.info.session = std::move(session);
  pin.nodes = std::move(nodes);
  pin.space = space;
  const PinInfo info = pin.info;
  pin_ends.emplace(expires_ns, info.id);
  pin_table.emplace(info.id, std::move(pin));
  return info;
}

void KvCache::Rep::EndPin(std::map<uint64_t, Pin>::iterator pin) {
  const std::vector<int32_t>& nodes = pin->second.nodes;
  for (size_t i = nodes.size(); i-- > 0;) {
    const int32_t n = nodes[i];
    CacheNode& node = index.node(n);
    KVASIR_CHECK(node.present && node.pins > 0);
    if (--node.pins > 0) continue;
    pools[0].SetNamedPin(n, false);
    --counts.pinned_by_name;
    for (size_t s = 0; s < sides.size(); ++s) {
      const int32_t block = sides[s].BlockOf(n);
      if (block < 0) continue;
      if (pools[s + 1].NamedPin(block)) pools[s + 1].SetNamedPin(block, false);
      if (pools[s + 1].RefCount(block) == 0) sides[s].List(block);
    }
    if (pools[0].RefCount(n) > 0) continue;
    --pinned_unheld;
    List(n);
    Overdue(n);
  }
  DropPinEnd(pin->second.info);
  pin_table.erase(pin);
}

void KvCache::Rep::DropPinEnd(const PinInfo& info) {
  const auto [first, last] = pin_ends.equal_range(info.expires_ns);
  for (auto it = first; it != last; ++it) {
    if (it->second != info.id) continue;
    pin_ends.erase(it);
    return;
  }
}

Result<PinInfo> KvCache::Pin(int32_t space, std::span<const TokenId> tokens, int64_t expires_ns) {
  if (!rep_->options.prefix_caching)
    return InvalidArgument("nothing is kept: the server runs with --no-prefix-caching");
  const CacheMatch match = Match(space, tokens, static_cast<int32_t>(tokens.size()));
  if (match.tokens == 0) return NotFound("nothing of this prefix is in the cache: warm it first");
  std::vector<int32_t> nodes = match.nodes;
  if (match.partial != kNoNode) nodes.push_back(match.partial);
  return rep_->AddPin(space, std::move(nodes), match.tokens, expires_ns, "");
}

const KvCache::Rep::SessionEnd* KvCache::Rep::FindSession(int32_t space,
                                                          std::string_view name) const {
  const auto id = session_ids.find({space, std::string(name)});
  if (id == session_ids.end()) return nullptr;
  const SessionEnd& end = session_ends.at(id->second);
  if (end.node == kNoNode) return nullptr;
  const CacheNode& node = index.node(end.node);
  return node.present && node.created == end.created && node.space == space ? &end : nullptr;
}

Result<PinInfo> KvCache::PinSession(int32_t space, std::string_view session, int64_t expires_ns) {
  const Rep::SessionEnd* end = rep_->FindSession(space, session);
  if (end == nullptr)
    return NotFound("session '" + std::string(session) + "' has nothing in the cache");
  std::vector<int32_t> nodes = rep_->PathOf(end->node);
  return rep_->AddPin(space, std::move(nodes), end->tokens, expires_ns, std::string(session));
}

bool KvCache::Unpin(uint64_t pin) {
  const auto found = rep_->pin_table.find(pin);
  if (found == rep_->pin_table.end()) return false;
  if (--found->second.times == 0) rep_->EndPin(found);
  return true;
}

// Are the pin's tokens a beginning of these?
bool KvCache::Rep::PinOn(const Pin& pin, std::span<const TokenId> tokens) const {
  if (static_cast<size_t>(pin.info.tokens) > tokens.size()) return false;
  for (size_t i = pin.nodes.size(); i-- > 0;) {
    const size_t first = i * static_cast<size_t>(bt);
    const size_t count =
        std::min(static_cast<size_t>(bt), static_cast<size_t>(pin.info.tokens) - first);
    const auto key = index.tokens(pin.nodes[i]);
    if (!std::equal(key.begin(), key.begin() + static_cast<ptrdiff_t>(count),
                    tokens.begin() + static_cast<ptrdiff_t>(first)))
      return false;
  }
  return true;
}

int32_t KvCache::UnpinTokens(int32_t space, std::span<const TokenId> tokens) {
  int32_t ended = 0;
  for (auto it = rep_->pin_table.begin(); it != rep_->pin_table.end();) {
    const auto next = std::next(it);
    if (it->second.space == space && rep_->PinOn(it->second, tokens)) {
      rep_->EndPin(it);
      ++ended;
    }
    it = next;
  }
  return ended;
}

int32_t KvCache::UnpinSession(int32_t space, std::string_view session) {
  int32_t ended = 0;
  for (auto it = rep_->pin_table.begin(); it != rep_->pin_table.end();) {
    const auto next = std::next(it);
    if (it->second.space == space && it->second.info.session == session) {
      rep_->EndPin(it);
      ++ended;
    }
    it = next;
  }
  return ended;
}

uint64_t KvCache::Session(int32_t space, std::string_view name) {
  Rep& r = *rep_;
  const std::pair<int32_t, std::string> key{space, std::string(name)};
  const auto found = r.session_ids.find(key);
  if (found != r.session_ids.end()) {
    const auto place = r.session_ends.at(found->second).place;
    r.session_order.splice(r.session_order.end(), r.session_order, place);
    return found->second;
  }
  if (r.session_ids.size() >= kSessionsMost) {
    const auto oldest = r.session_ids.find(r.session_order.front());
    r.session_ends.erase(oldest->second);
    r.session_ids.erase(oldest);
    r.session_order.pop_front();
  }
  const uint64_t id = r.next_session++;
  r.session_ids.emplace(key, id);
  Rep::SessionEnd end;
  end.place = r.session_order.insert(r.session_order.end(), key);
  r.session_ends.emplace(id, end);
  return id;
}

ResetInfo KvCache::Reset(bool pins) {
  Rep& r = *rep_;
  if (pins) {
    while (!r.pin_table.empty()) r.EndPin(r.pin_table.begin());
  }
  ResetInfo info;
  const int32_t before = r.pools[0].Count(BlockState::kEvictable);
  for (int32_t n = r.policy->Victim(); n != kNoNode; n = r.policy->Victim())
    r.EvictNode(n, EvictReason::kReset);
  info.freed_blocks = before - r.pools[0].Count(BlockState::kEvictable);
  info.pinned_blocks = r.counts.pinned_by_name;
  info.in_use_blocks = r.pools[0].total() - r.pools[0].free() - r.pinned_unheld;
  return info;
}

void KvCache::Expire(int64_t now_ns) {
  Rep& r = *rep_;
  while (!r.pin_ends.empty() && r.pin_ends.begin()->first <= now_ns)
    r.EndPin(r.pin_table.find(r.pin_ends.begin()->second));
  for (int i = 0; i < kExpireMost; ++i) {
    if (r.expiries.empty() || r.expiries.begin()->at_ns > now_ns) break;
    const int32_t n = r.expiries.begin()->node;
    const uint16_t hits = r.expiry_of.at(n).hits;
    r.DropExpiry(n);
    CacheNode& node = r.index.node(n);
    if (node.hits != hits) continue;
    if (!node.listed) {
      node.overdue = true;
    } else if (node.children == 0) {
      r.EvictNode(n, EvictReason::kExpired);
    }
  }
}

std::vector<PinInfo> KvCache::pins() const {
  std::vector<PinInfo> out;
  for (const auto& [id, pin] : rep_->pin_table) out.push_back(pin.info);
  return out;
}

}  // namespace kvasir
