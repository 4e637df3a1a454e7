// For tests: a KvCache with sequences that compute their tokens and end.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kvcache/kv_cache.h"

namespace kvasir::testing_cache {

inline std::vector<TokenId> Tokens(int32_t count, TokenId first = 100) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class Cache {
 public:
  explicit Cache(int32_t blocks, KvCacheOptions options = {}) {
    options.blocks.assign(1, blocks);
    Make(options);
  }
  explicit Cache(KvCacheOptions options) { Make(options); }

  KvCache* operator->() { return cache_.get(); }

  // A sequence that computes its tokens, generates none, and ends.
  BeginResult Serve(int32_t space, const std::vector<TokenId>& tokens, const CacheHint& hint = {}) {
    SequenceKv kv;
    const BeginResult result = Start(kv, space, tokens);
    cache_->Release(kv, tokens, static_cast<int32_t>(tokens.size()), hint);
    cache_->CheckIntegrity();
    return result;
  }

  BeginResult Start(SequenceKv& kv, int32_t space, const std::vector<TokenId>& tokens) {
    const int32_t size = static_cast<int32_t>(tokens.size());
    BeginOptions begin;
    begin.tokens = tokens;
    begin.limit = size - 1;
    begin.promise = size;
    begin.chunk = size;
    BeginResult result;
    std::vector<BlockMove> moves;
    EXPECT_TRUE(cache_->Begin(kv, cache_->Match(space, tokens, size - 1), begin, moves, &result));
    EXPECT_TRUE(cache_->Grow(kv, result.computed, size, moves));
    cache_->Announce(kv, tokens, size);
    cache_->Publish(kv, tokens, result.computed, size);
    cache_->PublishTail(kv, tokens, size);
    cache_->CheckIntegrity();
    return result;
  }

  uint64_t Missed(MissReason reason) const {
    return cache_->counts().misses[static_cast<size_t>(reason)];
  }
  uint64_t Evicted(EvictReason reason) const {
    return cache_->counts().evictions[static_cast<size_t>(reason)];
  }

 private:
  void Make(const KvCacheOptions& options) {
    auto made = KvCache::Make(options);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    cache_ = std::move(made).value();
  }
  std::unique_ptr<KvCache> cache_;
};

}  // namespace kvasir::testing_cache
