// KvCache from a seed, with bytes that are checked: every slot of every group's blocks holds the
// hash of the token history that wrote it. Random sequences begin, grow, announce, publish, fork,
// are swapped out and in, fail, end; after each call everything is recounted, and every slot that a
// row may read must hold just this sequence's history: foreign, stale and half-filled blocks are
// caught at once. In big pools the match must be as long as that of a list of all token
// histories ever published; in tiny ones never longer.
//
// KVASIR_FUZZ_SEED runs one seed; KVASIR_FUZZ_ROUNDS sets how many.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "base/hash.h"
#include "base/sanitizer.h"
#include "kvcache/kv_cache.h"

namespace kvasir {
namespace {

struct Totals {
  int64_t ops = 0, hits = 0, exact = 0, evicted = 0, merged = 0, copied = 0, swapped = 0,
          pending = 0;
};

class Episode {
 public:
  Episode(uint64_t seed, bool big) : rng_(seed), big_(big) {
    options_.block_tokens = 1 << rng_.Below(5);
    bt_ = options_.block_tokens;
    const int32_t side_groups = rng_.Below(2) == 0 ? 0 : 1 + static_cast<int32_t>(rng_.Below(2));
    for (int32_t g = 0; g < side_groups; ++g) {
      KvGroup group;
      group.rule = rng_.Below(2) == 0 ? GroupRule::kWindow : GroupRule::kChunked;
      group.window = 1 + static_cast<int32_t>(rng_.Below(40));
      options_.groups.push_back(group);
    }
    const int32_t blocks = big ? 4000 : 4 + static_cast<int32_t>(rng_.Below(60));
    for (size_t g = 0; g < options_.groups.size(); ++g)
      options_.blocks.push_back(g == 0 || big ? blocks : 4 + static_cast<int32_t>(rng_.Below(40)));
    const char* policies[] = {"lru", "fifo", "slru", "s3fifo", "cost"};
    options_.evict = policies[rng_.Below(5)];
    options_.host_slots = static_cast<int32_t>(rng_.Below(40));
    options_.tenant_quota = rng_.Uniform();
    auto made = KvCache::Make(options_);
    KVASIR_CHECK(made.ok());
    cache_ = std::move(made).value();
    for (size_t g = 0; g < options_.groups.size(); ++g)
      bytes_.emplace_back(static_cast<size_t>(options_.blocks[g]) * static_cast<size_t>(bt_), 0);
    host_.resize(static_cast<size_t>(options_.host_slots) * static_cast<size_t>(bt_));
    alphabet_ = 1 + rng_.Below(3);
    solo_ = rng_.Below(2) == 0;
  }

  ~Episode() {
    while (!live_.empty()) End(live_.begin()->first);
  }

  void Run(int ops, Totals& totals) {
    for (int i = 0; i < ops && !::testing::Test::HasFailure(); ++i) {
      const uint64_t what = rng_.Below(10);
      if (what < 3 && !(big_ && solo_ && !live_.empty())) Start(totals);
      if (what >= 2 && what < 8) Step(totals);
      if (what == 8 && !live_.empty()) End(Pick());
      if (what == 9) Odd();
      cache_->CheckIntegrity();
      ++totals.ops;
    }
    while (!live_.empty()) End(live_.begin()->first);
    cache_->CheckIntegrity();
    const PoolBooks books = cache_->books();
    EXPECT_EQ(books.free + books.evictable + cache_->counts().pinned_by_name, books.total);
    EXPECT_EQ(cache_->free_host_slots(), options_.host_slots);
    const CacheCounts counts = cache_->counts();
    uint64_t missed = 0;
    for (const uint64_t n : counts.misses) missed += n;
    EXPECT_EQ(counts.hits + missed, counts.queries);
    for (const uint64_t n : counts.evictions) totals.evicted += static_cast<int64_t>(n);
    totals.merged += static_cast<int64_t>(counts.merged);
    totals.copied += static_cast<int64_t>(counts.copied);
    totals.swapped += static_cast<int64_t>(counts.swapped_in);
    totals.hits += static_cast<int64_t>(counts.hits);
  }

 private:
  struct Live {
    std::vector<TokenId> tokens;
    SequenceKv kv;
    int32_t computed = 0;
    int32_t space = -1;
    int32_t prompt = 0;
    bool begun = false;
    CacheHint hint;
  };

  int Pick() {
    auto it = live_.begin();
    std::advance(it, static_cast<ptrdiff_t>(rng_.Below(live_.size())));
    return it->first;
  }

  uint64_t Extend(uint64_t history, TokenId token) const {
    return CounterRandom(history, 1, static_cast<uint64_t>(token));
  }
  static uint64_t StartOf(int32_t space) { return 77 + static_cast<uint64_t>(space) * 1315423911u; }
  uint64_t SpaceName(int32_t space) { return names_.at(space); }

  void Start(Totals& totals) {
    auto live = std::make_unique<Live>();
    const uint64_t name = rng_.Below(3);
    live->space = cache_->OpenSpace(name == 2 ? "tenant" : "", name == 1 ? "salt" : "");
    names_[live->space] = name;
    // Half of the prompts go on where an earlier one was.
    if (!seen_[name].empty() && rng_.Below(2) == 0) {
      auto it = seen_[name].begin();
      std::advance(it, static_cast<ptrdiff_t>(rng_.Below(seen_[name].size())));
      live->tokens.assign(it->begin(),
                          it->begin() + static_cast<ptrdiff_t>(1 + rng_.Below(it->size())));
    }
    const size_t more = (live->tokens.empty() ? 1 : 0) + rng_.Below(30);
    for (size_t i = 0; i < more; ++i)
      live->tokens.push_back(static_cast<TokenId>(rng_.Below(alphabet_)));
    live->prompt = static_cast<int32_t>(live->tokens.size());
    if (rng_.Below(6) == 0) live->hint.last_use = true;
    if (rng_.Below(6) == 0) live->hint.retain = Retain::kHigh;
    if (rng_.Below(6) == 0) live->hint.retain = Retain::kLow;
    if (rng_.Below(8) == 0) live->hint.expires_ns = now_ + static_cast<int64_t>(rng_.Below(50));
    if (rng_.Below(8) == 0) live->hint.session = cache_->Session(live->space, "s");
    const int id = ++next_;
    live_.emplace(id, std::move(live));
    std::vector<BlockMove> moves;
    if (!TryBegin(id, false, moves, totals)) return;
    Apply(moves);
    Verify(*live_.at(id));
  }

  // How far the list of all histories carries this prompt.
  int32_t Naive(const Live& live, int32_t limit) {
    int32_t best = 0;
    for (const auto& history : seen_[SpaceName(live.space)]) {
      int32_t common = 0;
      while (common < limit && static_cast<size_t>(common) < history.size() &&
             history[static_cast<size_t>(common)] == live.tokens[static_cast<size_t>(common)])
        ++common;
      best = std::max(best, common);
    }
    return best;
  }

  uint64_t Evictions() const {
    const CacheCounts counts = cache_->counts();
    return counts.evictions[static_cast<size_t>(EvictReason::kCapacity)] +
           counts.evictions[static_cast<size_t>(EvictReason::kQuota)];
  }

  bool TryBegin(int id, bool in_step, std::vector<BlockMove>& moves, Totals& totals) {
    Live& live = *live_.at(id);
    const int32_t size = static_cast<int32_t>(live.tokens.size());
    const CacheMatch match = cache_->Match(live.space, live.tokens, size - 1);
    if (!in_step) {
      EXPECT_EQ(match.pending_tokens, 0) << "announcements live inside a step only";
    }
    const bool resumes = live.kv.swapped();
    const int32_t naive = Naive(live, size - 1);
    EXPECT_LE(match.tokens, naive);
    if (big_ && options_.groups.size() == 1 && !dropped_ && !in_step && Evictions() == 0) {
      // Two that compute one block in one step enter what follows it a step later.
      if (solo_) {
        EXPECT_EQ(match.tokens, naive);
      } else {
        EXPECT_GE(match.tokens, naive - 16 - 2 * bt_);
      }
      ++totals.exact;
    }
    BeginOptions begin;
    begin.tokens = live.tokens;
    begin.limit = size - 1;
    begin.promise = size;
    begin.chunk = 16;
    begin.count = !resumes;
    const bool fits = cache_->Fits(match, live.kv, size, 16, 0);
    const size_t moves_before = moves.size();
    BeginResult result;
    const bool begun = cache_->Begin(live.kv, match, begin, moves, &result);
    EXPECT_TRUE(begun || !fits || match.partial_tokens > 0);
    if (!begun) {
      EXPECT_EQ(moves.size(), moves_before);
      return false;
    }
    live.begun = true;
    live.computed = result.computed;
    EXPECT_LE(result.hit, match.tokens);
    EXPECT_LT(result.computed, size);
    if (resumes) {
      EXPECT_GE(result.computed, swapped_at_[id]);
    }
    return true;
  }

  void Apply(const std::vector<BlockMove>& moves) {
    const auto slots = [&](std::vector<uint64_t>& bytes, int32_t block) {
      return bytes.begin() + static_cast<ptrdiff_t>(block) * bt_;
    };
    for (const BlockMove& move : moves) {
      std::vector<uint64_t>& pool = bytes_[static_cast<size_t>(move.group)];
      std::vector<uint64_t>& from = move.kind == BlockMove::Kind::kSwapIn ? host_ : pool;
      std::vector<uint64_t>& to = move.kind == BlockMove::Kind::kSwapOut ? host_ : pool;
      ASSERT_TRUE(&from != &to || move.from != move.to);
      std::copy_n(slots(from, move.from), bt_, slots(to, move.to));
    }
  }

  // Every slot that the next row reads holds this history.
  void Verify(const Live& live) {
    std::vector<uint64_t> histories;
    uint64_t history = StartOf(static_cast<int32_t>(SpaceName(live.space)));
    for (int32_t p = 0; p < live.computed; ++p)
      histories.push_back(history = Extend(history, live.tokens[static_cast<size_t>(p)]));
    for (size_t g = 0; g < options_.groups.size(); ++g) {
      const auto table = live.kv.table(static_cast<int32_t>(g));
      for (int32_t p = options_.groups[g].FirstNeeded(live.computed); p < live.computed; ++p) {
        const int32_t block = table[static_cast<size_t>(p / bt_)];
        ASSERT_GE(block, 0) << "group " << g << " position " << p << " of " << live.computed;
        ASSERT_EQ(bytes_[g][static_cast<size_t>(block * bt_ + p % bt_)],
                  histories[static_cast<size_t>(p)])
            << "group " << g << ": foreign, stale or half-filled at position " << p;
      }
    }
  }

  void Write(const Live& live, int32_t from, int32_t to) {
    uint64_t history = StartOf(static_cast<int32_t>(SpaceName(live.space)));
    for (int32_t p = 0; p < to; ++p) {
      history = Extend(history, live.tokens[static_cast<size_t>(p)]);
      if (p < from) continue;
      for (size_t g = 0; g < options_.groups.size(); ++g) {
        const int32_t block = live.kv.table(static_cast<int32_t>(g))[static_cast<size_t>(p / bt_)];
        EXPECT_EQ(cache_->RefCount(static_cast<int32_t>(g), block), 1);
        bytes_[g][static_cast<size_t>(block * bt_ + p % bt_)] = history;
      }
    }
  }

  struct Planned {
    int id;
    int32_t to;
    bool announced;
  };

  // One step: some sequences run a chunk or a decode each, then all are committed, or fail.
  void Step(Totals& totals) {
    std::vector<Planned> plan;
    std::vector<BlockMove> moves;
    std::vector<int> ids, begun;
    for (const auto& [id, live] : live_) ids.push_back(id);
    for (const int id : ids) {
      if (rng_.Below(3) == 0) continue;
      Live& live = *live_.at(id);
      if (!live.begun) {
        if (TryBegin(id, true, moves, totals)) begun.push_back(id);
        continue;
      }
      const int32_t size = static_cast<int32_t>(live.tokens.size());
      const int32_t to =
          std::min<int32_t>(size, live.computed + 1 + static_cast<int32_t>(rng_.Below(16)));
      if (!cache_->Grow(live.kv, live.computed, to, moves)) continue;
      const bool announced = to > live.computed + 1 || rng_.Below(2) == 0;
      if (announced) {
        Note(live, live.computed);
        cache_->Announce(live.kv, live.tokens, to);
      }
      plan.push_back({id, to, announced});
    }
    cache_->CheckIntegrity();
    // A newcomer with the same prompt sees what is being computed, and never takes it for written.
    if (!plan.empty()) {
      const Live& other = *live_.at(plan.front().id);
      const CacheMatch match =
          cache_->Match(other.space, other.tokens, static_cast<int32_t>(other.tokens.size()));
      totals.pending += match.pending_tokens > 0 ? 1 : 0;
    }
    Apply(moves);
    for (const Planned& planned : plan) Verify(*live_.at(planned.id));
    for (const int id : begun) Verify(*live_.at(id));
    const bool failed = rng_.Below(big_ ? 200 : 20) == 0;
    // Two announcements of one tail that both fail may lose what one of them had before.
    dropped_ = dropped_ || failed;
    for (const Planned& planned : plan) {
      Live& live = *live_.at(planned.id);
      if (failed) {
        cache_->Retract(live.kv);
        continue;
      }
      Write(live, live.computed, planned.to);
    }
    for (const Planned& planned : plan) {
      if (failed) {
        End(planned.id);
      } else {
        Commit(planned);
      }
    }
  }

  void Commit(const Planned& planned) {
    Live& live = *live_.at(planned.id);
    cache_->Publish(live.kv, live.tokens, live.computed, planned.to);
    const bool prompt_done = live.computed < live.prompt && planned.to >= live.prompt;
    live.computed = planned.to;
    Note(live, planned.announced ? live.computed : live.computed / bt_ * bt_);
    if (prompt_done) {
      cache_->PublishTail(live.kv, live.tokens, live.prompt);
      Note(live, live.prompt);
    }
    if (live.computed == static_cast<int32_t>(live.tokens.size()))
      live.tokens.push_back(static_cast<TokenId>(rng_.Below(alphabet_)));
    Verify(live);
    if (rng_.Below(big_ ? 150 : 15) == 0) Fork(planned.id);
  }

  // These tokens can be found from now on.
  void Note(const Live& live, int32_t computed) {
    if (computed == 0) return;
    seen_[SpaceName(live.space)].insert(
        std::vector<TokenId>(live.tokens.begin(), live.tokens.begin() + computed));
  }

  void Fork(int id) {
    const Live& from = *live_.at(id);
    dropped_ = true;  // a tail that two of them hold is found when the last of them ends
    auto to = std::make_unique<Live>();
    to->tokens = from.tokens;
    to->tokens.back() = static_cast<TokenId>(rng_.Below(alphabet_));
    to->computed = from.computed;
    to->prompt = from.prompt;
    to->begun = true;
    to->space = cache_->OpenSpace(SpaceName(from.space) == 2 ? "tenant" : "",
                                  SpaceName(from.space) == 1 ? "salt" : "");
    EXPECT_EQ(to->space, from.space);
    cache_->Fork(from.kv, to->kv);
    Verify(*to);
    live_.emplace(++next_, std::move(to));
  }

  void End(int id) {
    Live& live = *live_.at(id);
    if (live.begun) {
      Verify(live);
      Note(live, live.computed);
      if (live.hint.last_use || live.hint.expires_ns != INT64_MAX) dropped_ = true;
      cache_->Release(live.kv, live.tokens, live.computed, live.hint);
    }
    cache_->DropSwapped(live.kv);
    cache_->CloseSpace(live.space);
    live_.erase(id);
  }

  void Odd() {
    const uint64_t what = rng_.Below(8);
    if (what < 4 && !live_.empty()) {
      const int id = Pick();
      Live& live = *live_.at(id);
      if (!live.begun) return;
      std::vector<BlockMove> moves;
      if (what < 3 && cache_->SwapOut(live.kv, live.tokens, live.computed, moves)) {
        Note(live, live.computed);
        swapped_at_[id] = live.computed;
        Apply(moves);
      } else {
        Note(live, live.computed);
        cache_->Release(live.kv, live.tokens, live.computed, CacheHint{});
      }
      live.begun = false;
      live.computed = 0;
    } else if (what == 4) {
      now_ += static_cast<int64_t>(rng_.Below(40));
      cache_->Expire(now_);
    } else if (what == 5 && !seen_[0].empty()) {
      const int32_t space = cache_->OpenSpace("", "");
      names_[space] = 0;
      const auto pinned = cache_->Pin(space, *seen_[0].begin(), now_ + 30);
      dropped_ = dropped_ || pinned.ok();  // a pinned tail keeps its key while it is written on
      if (pinned.ok() && rng_.Below(2) == 0) {
        EXPECT_TRUE(cache_->Unpin(pinned->id));
      }
      cache_->CloseSpace(space);
    } else if (what == 6 && rng_.Below(4) == 0) {
      dropped_ = true;
      const ResetInfo info = cache_->Reset(rng_.Below(2) == 0);
      EXPECT_EQ(cache_->books().evictable + cache_->books().free + info.in_use_blocks +
                    cache_->books().reserved,
                cache_->books().total - (info.pinned_blocks > 0 ? PinnedUnheld() : 0));
    } else if (what == 7) {
      EXPECT_LE(cache_->Hottest(5).size(), 5u);
    }
  }

  int64_t PinnedUnheld() {
    const PoolBooks books = cache_->books();
    int64_t held = 0;
    for (int32_t b = 0; b < cache_->total_blocks(); ++b) held += cache_->RefCount(0, b) > 0 ? 1 : 0;
    return books.filling + books.pinned - held;
  }

  Rng rng_;
  bool big_;
  KvCacheOptions options_;
  int32_t bt_ = 0;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::vector<uint64_t>> bytes_;  // per group, slot by slot
  std::vector<uint64_t> host_;
  std::map<int, std::unique_ptr<Live>> live_;
  std::map<int, int32_t> swapped_at_;
  std::map<int32_t, uint64_t> names_;                        // of namespaces
  std::map<uint64_t, std::set<std::vector<TokenId>>> seen_;  // published, by name
  bool dropped_ = false;                                     // something was dropped on purpose
  uint64_t alphabet_ = 2;
  bool solo_ = false;  // in big pools: one sequence after the other
  int64_t now_ = 0;
  int next_ = 0;
};

int Rounds() {
  const char* text = std::getenv("KVASIR_FUZZ_ROUNDS");
  if (text != nullptr) return std::atoi(text);
  return kSanitized ? 60 : 400;
}

TEST(KvCacheRandom, BytesAreAlwaysOnesOwn) {
  Totals totals;
  const char* one = std::getenv("KVASIR_FUZZ_SEED");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t last = one != nullptr ? first : static_cast<uint64_t>(Rounds());
  for (uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Episode episode(seed, seed % 4 == 0);
    episode.Run(seed % 4 == 0 ? 80 : 300, totals);
  }
  std::printf(
      "ops %lld hits %lld exact %lld evicted %lld merged %lld copied %lld swapped in %lld "
      "pending %lld\n",
      static_cast<long long>(totals.ops), static_cast<long long>(totals.hits),
      static_cast<long long>(totals.exact), static_cast<long long>(totals.evicted),
      static_cast<long long>(totals.merged), static_cast<long long>(totals.copied),
      static_cast<long long>(totals.swapped), static_cast<long long>(totals.pending));
  if (last - first < 200) return;
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.exact, 100);
  EXPECT_GT(totals.evicted, 1000);
  EXPECT_GT(totals.merged, 100);
  EXPECT_GT(totals.copied, 100);
  EXPECT_GT(totals.swapped, 100);
  EXPECT_GT(totals.pending, 100);
}

}  // namespace
}  // namespace kvasir
