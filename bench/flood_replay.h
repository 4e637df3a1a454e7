// Case S04 through the real KvCache without a model: a hot prefix among one-off prompts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "kvcache/kv_cache.h"

namespace kvasir {

// Serves one prompt; returns how many of its tokens were cached.
inline int32_t ServePrompt(KvCache& cache, int32_t space, const std::vector<TokenId>& tokens) {
  const int32_t size = static_cast<int32_t>(tokens.size());
  std::vector<BlockMove> moves;
  SequenceKv kv;
  BeginResult begun;
  // The last token is computed in any case: its logits are wanted.
  const CacheMatch match = cache.Match(space, tokens, size - 1);
  KVASIR_CHECK(cache.Begin(kv, match, {tokens, size - 1, size, size, true}, moves, &begun));
  KVASIR_CHECK(cache.Grow(kv, begun.computed, size, moves));
  cache.Publish(kv, tokens, begun.computed, size);
  cache.Release(kv, tokens, size, CacheHint{});
  return begun.hit;
}

struct FloodRow {
  double mixed = 0;      // share of the hot prefix found while it is in use
  double after = 0;      // the same for the first request after the flood
  double evictions = 0;  // blocks a one-off of the flood
};

// Case S04: room for 1,500 tokens; half of 200 requests share 512 tokens, half are one-off prompts
// of 600; then `flood` one-offs, then the hot prefix again.
inline FloodRow ReplayFlood(const char* policy, uint64_t seed, int flood) {
  constexpr int32_t kHot = 512, kOneOff = 600;
  KvCacheOptions options;
  options.blocks = {1500 / 16};
  options.evict = policy;
  const std::unique_ptr<KvCache> cache = std::move(KvCache::Make(options).value());
  const int32_t space = cache->OpenSpace("", "");
  uint64_t prompts = 0;
  const auto prompt = [&](bool hot) {
    std::vector<TokenId> tokens;
    const uint64_t stream = 1000 * seed + ++prompts;
    for (uint64_t i = 0; hot && i < kHot; ++i)
      tokens.push_back(static_cast<TokenId>(CounterRandom(seed, 0, i) % 32000));
    for (uint64_t i = 0; i < (hot ? 16 : kOneOff); ++i)
      tokens.push_back(static_cast<TokenId>(CounterRandom(3, stream, i) % 32000));
    return tokens;
  };
  Rng rng(seed);
  FloodRow row;
  double wanted = 0;
  for (int i = 0; i < 200; ++i) {
    const bool hot = rng.Below(2) == 0;
    const int32_t hit = ServePrompt(*cache, space, prompt(hot));
    if (!hot) continue;
    wanted += kHot;
    row.mixed += std::min(hit, kHot);
  }
  row.mixed /= wanted;
  const auto evicted = [&] {
    return static_cast<double>(
        cache->counts().evictions[static_cast<size_t>(EvictReason::kCapacity)]);
  };
  const double before = evicted();
  for (int i = 0; i < flood; ++i) ServePrompt(*cache, space, prompt(false));
  row.evictions = (evicted() - before) / flood;
  row.after = std::min(ServePrompt(*cache, space, prompt(true)), kHot) / static_cast<double>(kHot);
  cache->CloseSpace(space);
  return row;
}

}  // namespace kvasir
