#include "kvcache/kv_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "kvcache/kv_cache_rep.h"

namespace kvasir {
namespace {

Status CheckShare(const char* name, double value) {
  if (value >= 0 && value <= 1) return Status::Ok();
  return InvalidArgument(std::string(name) + " must be a share from 0 to 1", name);
}

Status CheckOptions(const KvCacheOptions& options) {
  const int32_t bt = options.block_tokens;
  if (bt < 1 || bt > 1024 || !std::has_single_bit(static_cast<unsigned>(bt))) {
    return InvalidArgument(
        "block size is " + std::to_string(bt) + " tokens, must be a power of two from 1 to 1024",
        "--block-size");
  }
  if (options.groups.empty() || options.groups.size() != options.blocks.size()) {
    return InvalidArgument("a KV cache needs one number of blocks for each group of layers");
  }
  if (options.groups[0].rule != GroupRule::kAll) {
    return InvalidArgument(
        "the first group of layers must keep every token (one without bytes will do)");
  }
  for (size_t g = 0; g < options.groups.size(); ++g) {
    if (options.blocks[g] < 1) return InvalidArgument("a group of layers has no blocks");
    if (g > 0 && (options.groups[g].rule == GroupRule::kAll || options.groups[g].window < 1))
      return InvalidArgument("group " + std::to_string(g) + " needs a window of at least 1 token");
  }
  KVASIR_RETURN_IF_ERROR(CheckShare("--pin-budget", options.pin_budget));
  return CheckShare("--tenant-quota", options.tenant_quota);
}

// Length-prefixed, so no tenant and salt can be read as another pair.
std::string SpaceKey(std::string_view tenant, std::string_view salt) {
  return std::to_string(tenant.size()) + ":" + std::string(tenant) + std::string(salt);
}

}  // namespace

const char* MissReasonName(MissReason reason) {
  constexpr std::array<const char*, kMissReasons> kNames = {
      "cold",  "evicted", "salt",       "format",     "partial_block",
      "reset", "expired", "tier_error", "tier_slower"};
  return kNames[static_cast<size_t>(reason)];
}

const char* EvictReasonName(EvictReason reason) {
  constexpr std::array<const char*, kEvictReasons> kNames = {"capacity", "quota",  "expired",
                                                             "reset",    "merged", "window"};
  return kNames[static_cast<size_t>(reason)];
}

KvCache::Rep::Rep(const KvCacheOptions& made)
    : options(made),
      bt(made.block_tokens),
      index(made.blocks[0], made.block_tokens, made.name_seed),
      ghosts(made.ghosts >= 0 ? made.ghosts : made.blocks[0]),
      owners(index.data()),
      promised(made.groups.size(), 0) {
  for (size_t g = 0; g < made.groups.size(); ++g) {
    pools.emplace_back(made.blocks[g], made.block_tokens);
    if (g > 0) sides.emplace_back(made.blocks[0], made.blocks[g]);
  }
  for (int32_t slot = made.host_slots; slot-- > 0;) host_free.push_back(slot);
}

KvCache::KvCache(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
KvCache::~KvCache() = default;

Result<std::unique_ptr<KvCache>> KvCache::Make(const KvCacheOptions& options) {
  KVASIR_RETURN_IF_ERROR(CheckOptions(options));
  auto rep = std::make_unique<Rep>(options);
  KVASIR_ASSIGN_OR_RETURN(
      rep->policy, EvictionPolicy::Make(options.evict, rep->index.data(), options.blocks[0]));
  return std::unique_ptr<KvCache>(new KvCache(std::move(rep)));
}

int32_t KvCache::block_tokens() const {
  return rep_->bt;
}
const std::string& KvCache::evict() const {
  return rep_->options.evict;
}
int32_t KvCache::groups() const {
  return static_cast<int32_t>(rep_->pools.size());
}
int32_t KvCache::total_blocks(int32_t group) const {
  return rep_->pools[static_cast<size_t>(group)].total();
}
int32_t KvCache::available(int32_t group) const {
  return rep_->Available(group);
}
int32_t KvCache::BlocksHeld(int32_t group, int32_t tokens, int32_t chunk) const {
  return rep_->BlocksHeld(group, tokens, chunk);
}
int32_t KvCache::free_host_slots() const {
  return static_cast<int32_t>(rep_->host_free.size());
}
int32_t KvCache::RefCount(int32_t group, int32_t block) const {
  return rep_->pools[static_cast<size_t>(group)].RefCount(block);
}

int32_t KvCache::OpenSpace(std::string_view tenant, std::string_view salt) {
  bool fresh = false;
  const std::string key = SpaceKey(tenant, salt);
  const int32_t id = rep_->index.Open(key, &fresh);
  if (!fresh) return id;
  const std::string owner = tenant.empty() ? "s" + std::string(salt) : "t" + std::string(tenant);
  PrefixIndex::Space& space = rep_->index.space(id);
  space.owner = rep_->owners.Open(owner);
  space.seed = Hash64(std::as_bytes(std::span(key.data(), key.size())), 0x6B76);
  return id;
}

void KvCache::CloseSpace(int32_t space) {
  rep_->index.Close(space);
  rep_->EndSpaceIfDead(space);
}

namespace {

// How far the other groups' blocks reach back from the end of a match.
class SideRuns {
 public:
  SideRuns(const std::vector<KvGroup>& groups, const std::vector<SideGroup>& sides,
           const std::vector<BlockPool>& pools, int32_t block_tokens)
      : groups_(groups), sides_(sides), pools_(pools), bt_(block_tokens), runs_(sides.size(), 0) {}

  void Add(int32_t node) {
    for (size_t s = 0; s < sides_.size(); ++s)
      runs_[s] = sides_[s].BlockOf(node) >= 0 ? runs_[s] + 1 : 0;
  }
  bool CoversBlocks(int32_t blocks) const { return Covers(blocks, blocks * bt_); }
  bool CoversPartial(int32_t blocks, int32_t node, int32_t tokens) const {
    // Also where this very hit would not need them: the copy must be whole, others will find it.
    for (size_t s = 0; s < sides_.size(); ++s) {
      const int32_t block = sides_[s].BlockOf(node);
      if (block < 0 || pools_[s + 1].Fill(block) < tokens) return false;
    }
    return Covers(blocks, blocks * bt_ + tokens);
  }

 private:
  bool Covers(int32_t blocks, int32_t end) const {
    for (size_t s = 0; s < sides_.size(); ++s) {
      if (blocks - groups_[s + 1].FirstNeeded(end) / bt_ > runs_[s]) return false;
    }
    return true;
  }

  const std::vector<KvGroup>& groups_;
  const std::vector<SideGroup>& sides_;
  const std::vector<BlockPool>& pools_;
  int32_t bt_;
  std::vector<int32_t> runs_;
};

}  // namespace

CacheMatch KvCache::Match(int32_t space, std::span<const TokenId> tokens, int32_t limit) const {
  const Rep& r = *rep_;
  CacheMatch match;
  match.space = space;
  limit = std::min(limit, static_cast<int32_t>(tokens.size()));
  if (!r.options.prefix_caching || limit <= 0) return match;
  SideRuns runs(r.options.groups, r.sides, r.pools, r.bt);
  int32_t parent = PrefixIndex::Top(space);
  size_t good = 0;  // nodes up to which every group has what it needs
  PrefixIndex::Found found;
  for (;;) {
    const int32_t depth = static_cast<int32_t>(match.nodes.size());
    if (depth * r.bt >= limit) {
      found = {};
      break;
    }
    const std::span<const TokenId> rest = r.BlockTokens(tokens, depth, limit);
    found = r.index.Find(parent, rest);
    if (found.equal == kNoNode || static_cast<int32_t>(rest.size()) < r.bt ||
        r.index.node(found.equal).ready < r.bt)
      break;
    match.nodes.push_back(found.equal);
    runs.Add(found.equal);
    if (runs.CoversBlocks(depth + 1)) good = match.nodes.size();
    parent = found.equal;
  }
  const int32_t depth = static_cast<int32_t>(match.nodes.size());
  if (found.best_tokens > 0 && runs.CoversPartial(depth, found.best, found.best_tokens)) {
    match.partial = found.best;
    match.partial_tokens = found.best_tokens;
  } else {
    match.nodes.resize(good);
  }
  match.tokens = static_cast<int32_t>(match.nodes.size()) * r.bt + match.partial_tokens;
  for (const int32_t n : match.nodes) match.unheld += r.index.node(n).listed ? 1 : 0;
  if (found.longest_tokens > found.best_tokens) {
    match.pending_tokens = r.PendingTokens(found, tokens, depth, limit) - match.tokens;
  }
  return match;
}

// Tokens up to which others' announced blocks would carry the match on.
int32_t KvCache::Rep::PendingTokens(PrefixIndex::Found found, std::span<const TokenId> tokens,
                                    int32_t depth, int32_t limit) const {
  int32_t end = depth * bt + found.longest_tokens;
  while (found.longest_tokens == bt) {
    ++depth;
    if (depth * bt >= limit) break;
    found = index.Find(found.longest, BlockTokens(tokens, depth, limit));
    end = depth * bt + found.longest_tokens;
  }
  return end;
}

bool KvCache::Fits(const CacheMatch& match, const SequenceKv& kv, int32_t tokens, int32_t chunk,
                   int32_t keep_free) const {
  for (int32_t g = 0; g < groups(); ++g) {
    const int32_t keep =
        static_cast<int32_t>(int64_t{keep_free} * total_blocks(g) / std::max(1, total_blocks(0)));
    if (rep_->NeedOf(match, kv, g, tokens, chunk).total() + keep > available(g)) return false;
  }
  return true;
}

// Tokens of the longest match in any other namespace; looks at a bounded number of nodes.
int32_t KvCache::Rep::ElsewhereTokens(int32_t space, std::span<const TokenId> tokens) const {
  constexpr int32_t kSpacesMost = 64;
  int32_t visits = 4096;
  int32_t longest = 0;
  const int32_t end = std::min(index.spaces(), kSpacesMost);
  for (int32_t other = 0; other < end && visits > 0; ++other) {
    if (other == space || !index.space(other).open) continue;
    int32_t parent = PrefixIndex::Top(other);
    int32_t matched = 0;
    while (visits-- > 0 && matched < static_cast<int32_t>(tokens.size())) {
      const auto found = index.Find(
          parent, BlockTokens(tokens, matched / bt, static_cast<int32_t>(tokens.size())));
      longest = std::max(longest, matched + found.best_tokens);
      if (found.best_tokens < bt) break;
      matched += bt;
      parent = found.best;
    }
  }
  return longest;
}

MissReason KvCache::Rep::CountLookup(const CacheMatch& match, int32_t hit,
                                     const BeginOptions& begin) {
  const std::span<const TokenId> tokens = begin.tokens;
  const int32_t size = static_cast<int32_t>(tokens.size());
  if (begin.limit + 1 < size) return MissReason::kCold;  // did not ask for the whole prompt
  counts.queries += static_cast<uint64_t>(size);
  counts.hits += static_cast<uint64_t>(hit);
  std::array<int32_t, kMissReasons> missed{};
  const auto miss = [&](MissReason reason, int32_t n) { missed[static_cast<size_t>(reason)] += n; };
  // There, but not of use.
  int32_t at = std::max(hit, match.present);
  if (at >= begin.limit && at > 0) at = size;
  miss(MissReason::kPartialBlock, at - hit);
  // What was here before: the run of blocks that follow in the ghosts.
  const int32_t first = hit / bt;
  uint64_t chain = first == 0 ? index.space(match.space).seed
                              : index.node(match.nodes[static_cast<size_t>(first - 1)]).chain;
  for (int32_t b = first; at < size && (b + 1) * bt <= size; ++b) {
    chain = PrefixIndex::Chain(chain, BlockTokens(tokens, b, size));
    if ((b + 1) * bt <= at) continue;
    const std::optional<EvictReason> ghost = ghosts.Find(chain);
    if (!ghost) break;
    ghosts.Erase(chain);
    const bool expired = *ghost == EvictReason::kExpired;
    const bool reset = *ghost == EvictReason::kReset;
    if (!expired && !reset) ++counts.evicted_then_wanted;
    miss(expired ? MissReason::kExpired
         : reset ? MissReason::kReset
                 : MissReason::kEvicted,
         (b + 1) * bt - at);
    at = (b + 1) * bt;
  }
  if (at < size && index.spaces() > 1) {
    const int32_t elsewhere =
        ElsewhereTokens(match.space, tokens.subspan(0, static_cast<size_t>(size)));
    miss(MissReason::kSalt, std::max(0, elsewhere - at));
    at = std::max(at, elsewhere);
  }
  miss(MissReason::kCold, size - at);
  for (size_t i = 0; i < missed.size(); ++i) counts.misses[i] += static_cast<uint64_t>(missed[i]);
  // Whether another namespace has it is nobody's business outside: there it is as cold as the rest.
  missed[static_cast<size_t>(MissReason::kCold)] +=
      std::exchange(missed[static_cast<size_t>(MissReason::kSalt)], 0);
  MissReason most = MissReason::kCold;
  for (int i = 0; i < kMissReasons; ++i) {
    if (missed[static_cast<size_t>(i)] > missed[static_cast<size_t>(most)])
      most = static_cast<MissReason>(i);
  }
  return most;
}

}  // namespace kvasir
