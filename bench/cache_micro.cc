// What KvCache itself costs, without a model: match, allocate, seal, release, evict over a million
// blocks, memory a block, and the longest single call among 10,000 live sequences.
//
//   cache_micro [blocks]    default 1,000,000; 16 tokens each
//
// Medians of rounds; the processor time of this thread is measured, so that neighbours on a shared
// host count little. About a minute and 400 MB.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "kvcache/kv_cache.h"

namespace {

using namespace kvasir;  // NOLINT(google-build-using-namespace)

constexpr int32_t kBlock = 16;
constexpr int32_t kLong = 32768;

int64_t ThreadNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<KvCache> MakeCache(int32_t blocks, const std::string& policy) {
  KvCacheOptions options;
  options.block_tokens = kBlock;
  options.blocks = {blocks};
  options.evict = policy;
  return std::move(KvCache::Make(options).value());
}

// A prompt: `shared` tokens that all of one group have, then its own.
std::vector<TokenId> Prompt(uint64_t group, int32_t shared, uint64_t own, int32_t size) {
  std::vector<TokenId> tokens(static_cast<size_t>(size));
  for (int32_t i = 0; i < size; ++i) {
    const uint64_t stream = i < shared ? group : (uint64_t{1} << 40) + own;
    tokens[static_cast<size_t>(i)] =
        static_cast<TokenId>(CounterRandom(1, stream, static_cast<uint64_t>(i)) % 128000);
  }
  return tokens;
}

struct Times {
  double match = 0, begin = 0, grow = 0, publish = 0, release = 0;  // ns
  int32_t found = 0;
};

// One prompt in one piece.
Times Serve(KvCache& cache, int32_t space, const std::vector<TokenId>& tokens) {
  const int32_t size = static_cast<int32_t>(tokens.size());
  std::vector<BlockMove> moves;
  SequenceKv kv;
  BeginResult begun;
  Times times;
  int64_t at = ThreadNs();
  const auto lap = [&] {
    const int64_t now = ThreadNs();
    const double ns = static_cast<double>(now - at);
    at = ThreadNs();
    return ns;
  };
  const CacheMatch match = cache.Match(space, tokens, size - 1);
  times.match = lap();
  KVASIR_CHECK(cache.Begin(kv, match, {tokens, size - 1, size, size, true}, moves, &begun));
  times.begin = lap();
  KVASIR_CHECK(cache.Grow(kv, begun.computed, size, moves));
  times.grow = lap();
  cache.Publish(kv, tokens, begun.computed, size);
  times.publish = lap();
  cache.Release(kv, tokens, size, CacheHint{});
  times.release = lap();
  times.found = begun.hit;
  return times;
}

// Fills the pool with prompts of 100 blocks, 40 of them shared in groups of 100 prompts.
void Fill(KvCache& cache, int32_t space, uint64_t& own) {
  while (cache.books().free > 0) {
    Serve(cache, space, Prompt(own / 100, 40 * kBlock, own, 100 * kBlock));
    ++own;
  }
}

void PrintPerBlock(int32_t blocks) {
  std::printf(
      "\nns a block of 16 tokens, prompts of 32,768 tokens, pool of %d blocks\n\n"
      "| policy | allocate, blocks free | seal | release | allocate + evict | seal | release |\n"
      "|---|---|---|---|---|---|---|\n",
      blocks);
  constexpr double kBlocks = kLong / kBlock;
  for (const char* policy : {"lru", "fifo", "slru", "s3fifo", "cost"}) {
    const std::unique_ptr<KvCache> cache = MakeCache(blocks, policy);
    const int32_t space = cache->OpenSpace("", "");
    uint64_t own = 0;
    std::vector<double> columns[6];
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 60; ++i) {
        const Times t = Serve(*cache, space, Prompt(0, 0, ++own, kLong));
        KVASIR_CHECK(t.found == 0);
        columns[3 * round + 0].push_back(t.grow / kBlocks);
        columns[3 * round + 1].push_back(t.publish / kBlocks);
        columns[3 * round + 2].push_back(t.release / kBlocks);
      }
      if (round == 0) Fill(*cache, space, own);
    }
    std::printf("| %s |", policy);
    for (const std::vector<double>& column : columns) std::printf(" %.0f |", Median(column));
    std::printf("\n");
    std::fflush(stdout);
    cache->CloseSpace(space);
  }
}

void PrintMatch(int32_t blocks) {
  const std::unique_ptr<KvCache> cache = MakeCache(blocks, "cost");
  const int32_t space = cache->OpenSpace("", "");
  uint64_t own = 0;
  Fill(*cache, space, own);
  const std::vector<TokenId> tokens = Prompt(7, kLong, 0, kLong);
  Serve(*cache, space, tokens);
  std::vector<double> hot, cold, miss;
  for (int i = 0; i < 101; ++i) {
    hot.push_back(Serve(*cache, space, tokens).match);
    // Other prompts push the long one's nodes out of the processor's caches.
    for (int k = 0; k < 20; ++k)
      Serve(*cache, space, Prompt(own / 100, 40 * kBlock, own, 100 * kBlock)), ++own;
    const int64_t start = ThreadNs();
    const CacheMatch match = cache->Match(space, tokens, kLong);
    cold.push_back(static_cast<double>(ThreadNs() - start));
    KVASIR_CHECK(match.tokens == kLong);
    const std::vector<TokenId> other = Prompt(1 << 20, kLong, 0, kLong);
    const int64_t before = ThreadNs();
    KVASIR_CHECK(cache->Match(space, other, kLong).tokens < kBlock);
    miss.push_back(static_cast<double>(ThreadNs() - before));
  }
  std::printf(
      "\nMatch of a prompt of 32,768 tokens in an index of %lld blocks: again at once %.1f us, "
      "after 2,000 other blocks %.1f us (%.0f ns a block), nothing found %.2f us\n",
      static_cast<long long>(cache->counts().cached_blocks), Median(hot) / 1000,
      Median(cold) / 1000, Median(cold) / (kLong / kBlock), Median(miss) / 1000);
  cache->CloseSpace(space);
}

void PrintMemory(int32_t blocks) {
  std::printf(
      "\nbytes a block beside its bytes in the arena, pool of %d blocks\n\n"
      "| policy | bookkeeping_bytes() | measured in all, without the token ids |\n"
      "|---|---|---|\n",
      blocks);
  for (const char* policy : {"lru", "fifo", "slru", "s3fifo", "cost"}) {
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    const std::unique_ptr<KvCache> cache = MakeCache(blocks, policy);
    const int32_t space = cache->OpenSpace("", "");
    const size_t all = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    const double per = static_cast<double>(all) / blocks - kBlock * sizeof(TokenId);
    std::printf("| %s | %.1f | %.1f |\n", policy,
                static_cast<double>(cache->bookkeeping_bytes()) / blocks, per);
    cache->CloseSpace(space);
  }
}

// ---- The longest call

struct Calls {
  explicit Calls(const char* n) : name(n) {}
  const char* name;
  std::vector<int64_t> ns;
  void Print() {
    if (ns.empty()) return;
    std::sort(ns.begin(), ns.end());
    const auto at = [&](double q) {
      return static_cast<double>(ns[static_cast<size_t>(q * static_cast<double>(ns.size() - 1))]) /
             1000;
    };
    std::printf("| %s | %zu | %.2f | %.1f | %.1f | %.1f |\n", name, ns.size(), at(0.5), at(0.99),
                at(0.9999), at(1));
  }
};

class Crowd {
 public:
  Crowd(KvCache& cache, int32_t live)
      : cache_(cache), space_(cache.OpenSpace("", "")), live_(static_cast<size_t>(live)) {
    for (Live& sequence : live_) Start(sequence, false);
  }
  ~Crowd() {
    for (Live& sequence : live_) End(sequence);
    cache_.CloseSpace(space_);
  }
  void Run(int calls) {
    for (Calls* kind :
         {&match_, &begin_, &grow_, &announce_, &publish_, &release_, &pin_, &expire_})
      kind->ns.clear();
    for (int i = 0; i < calls; ++i) {
      Live& sequence = live_[rng_.Below(live_.size())];
      if (rng_.Below(8) > 0) {
        sequence.tokens.push_back(static_cast<TokenId>(rng_.Below(128000)));
        Write(sequence, static_cast<int32_t>(sequence.tokens.size()));
      } else {
        End(sequence);
        Start(sequence, rng_.Below(200) == 0);
      }
      if (i % 64 == 0) Timed(expire_, [&] { cache_.Expire(i); });
      if (i % 512 == 0) PinSome(sequence, i);
    }
  }
  void Print() {
    std::printf("| call | calls | p50 us | p99 | p99.99 | longest |\n|---|---|---|---|---|---|\n");
    for (Calls* kind :
         {&match_, &begin_, &grow_, &announce_, &publish_, &release_, &pin_, &expire_})
      kind->Print();
  }

 private:
  struct Live {
    SequenceKv kv;
    std::vector<TokenId> tokens;
    int32_t computed = 0;
  };
  template <typename Call>
  static void Timed(Calls& kind, Call call) {
    const int64_t start = ThreadNs();
    call();
    kind.ns.push_back(ThreadNs() - start);
  }

  void Start(Live& sequence, bool is_long) {
    const uint64_t group = rng_.Below(200);
    const int32_t size = is_long ? kLong : 256 + static_cast<int32_t>(rng_.Below(1024));
    sequence.tokens = Prompt(group, 512, ++own_, size);
    if (is_long && group < 100) sequence.tokens = Prompt(group % 8, size - 100, own_, size);
    CacheMatch match;
    BeginResult begun;
    Timed(match_, [&] { match = cache_.Match(space_, sequence.tokens, size - 1); });
    Timed(begin_, [&] {
      KVASIR_CHECK(cache_.Begin(sequence.kv, match, {sequence.tokens, size - 1, size, 512, true},
                                moves_, &begun));
    });
    sequence.computed = begun.computed;
    while (sequence.computed < size) Write(sequence, std::min(size, sequence.computed + 512));
  }
  void Write(Live& sequence, int32_t to) {
    moves_.clear();
    Timed(grow_, [&] { KVASIR_CHECK(cache_.Grow(sequence.kv, sequence.computed, to, moves_)); });
    Timed(announce_, [&] { cache_.Announce(sequence.kv, sequence.tokens, to); });
    Timed(publish_, [&] { cache_.Publish(sequence.kv, sequence.tokens, sequence.computed, to); });
    sequence.computed = to;
  }
  void End(Live& sequence) {
    Timed(release_,
          [&] { cache_.Release(sequence.kv, sequence.tokens, sequence.computed, CacheHint{}); });
  }
  void PinSome(Live& sequence, int64_t now) {
    Timed(pin_, [&] {
      const auto pin = cache_.Pin(space_, sequence.tokens, now + 5000);
      (void)pin.ok();
    });
  }

  KvCache& cache_;
  int32_t space_;
  std::vector<Live> live_;
  std::vector<BlockMove> moves_;
  Rng rng_{1};
  uint64_t own_ = 0;
  Calls match_{"match"}, begin_{"begin"}, grow_{"grow (32 blocks at most)"}, announce_{"announce"},
      publish_{"publish"}, release_{"release"}, pin_{"pin"}, expire_{"expire"};
};

void PrintLongest(int32_t blocks) {
  for (const char* policy : {"lru", "fifo", "slru", "s3fifo", "cost"}) {
    const std::unique_ptr<KvCache> cache = MakeCache(blocks, policy);
    {
      const int32_t live = blocks / 100;
      Crowd crowd(*cache, live);
      while (cache->books().free > blocks / 100) crowd.Run(1000);
      crowd.Run(200000);
      std::printf(
          "\n%s: %d live sequences, %d blocks, a pool that is full; prompts of up to 1,280 "
          "tokens, one in 200 of 32,768\n\n",
          policy, live, blocks);
      crowd.Print();
      std::fflush(stdout);
    }
    cache->CheckIntegrity();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int32_t blocks = argc > 1 ? std::atoi(argv[1]) : 1000000;
  if (blocks < 10000) {
    std::fprintf(stderr, "usage: cache_micro [blocks, at least 10000]\n");
    return 2;
  }
  PrintMemory(blocks);
  PrintMatch(blocks);
  PrintPerBlock(blocks);
  PrintLongest(blocks);
  return 0;
}
