// Examples that explain KvCache, rule by rule. The random machine is in kv_cache_random_test.cc.
#include "kvcache/kv_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kvcache/test_cache.h"

namespace kvasir {
namespace {

using namespace testing_cache;  // NOLINT(google-build-using-namespace)

constexpr int32_t kBlock = 16;

// Case P01: whole blocks, one less, one more; a repeat computes one token.
TEST(KvCache, ARepeatFindsAllButOneToken) {
  for (const int32_t length : {1, 15, 16, 17, 31, 32, 33, 48, 64}) {
    Cache cache(64);
    const int32_t space = cache->OpenSpace("", "");
    EXPECT_EQ(cache.Serve(space, Tokens(length)).hit, 0);
    EXPECT_EQ(cache.Serve(space, Tokens(length)).hit, length - 1) << length;
    EXPECT_EQ(cache.Serve(space, Tokens(length + 1)).hit, length) << "extended by one";
    EXPECT_EQ(cache.Serve(space, Tokens(length + 17)).hit, length + 1) << "extended by 17";
    cache->CloseSpace(space);
  }
}

TEST(KvCache, AMatchThatEndsInsideABlockIsCopied) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  cache.Serve(space, Tokens(40));
  std::vector<TokenId> other = Tokens(40);
  other[37] = 7;
  EXPECT_EQ(cache.Serve(space, other).hit, 37);
  EXPECT_EQ(cache->counts().copied, 1u);
  other[20] = 7;
  EXPECT_EQ(cache.Serve(space, other).hit, 20);
  // Both stay whole.
  EXPECT_EQ(cache->Match(space, Tokens(40), 40).tokens, 40);
  cache->CloseSpace(space);
}

TEST(KvCache, WhatIsAnnouncedIsPendingAndNeverWritten) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  const std::vector<TokenId> tokens = Tokens(40);
  SequenceKv kv;
  BeginOptions begin;
  begin.tokens = tokens;
  begin.limit = 39;
  begin.promise = 40;
  begin.chunk = 40;
  BeginResult result;
  std::vector<BlockMove> moves;
  ASSERT_TRUE(cache->Begin(kv, cache->Match(space, tokens, 39), begin, moves, &result));
  EXPECT_EQ(cache->books().reserved, 3);
  ASSERT_TRUE(cache->Grow(kv, 0, 24, moves));
  EXPECT_EQ(cache->books().reserved, 1);
  cache->Announce(kv, tokens, 24);
  CacheMatch match = cache->Match(space, tokens, 39);
  EXPECT_EQ(match.tokens, 0);
  EXPECT_EQ(match.pending_tokens, 24);
  std::vector<TokenId> parted = tokens;
  parted[20] = 7;
  EXPECT_EQ(cache->Match(space, parted, 39).pending_tokens, 20);
  // The run fails: nothing waits for it any more.
  cache->Retract(kv);
  EXPECT_EQ(cache->Match(space, tokens, 39).pending_tokens, 0);
  cache->Release(kv, tokens, 0, {});
  EXPECT_EQ(cache->books().free, 64);
  cache->CloseSpace(space);
}

TEST(KvCache, TwoThatComputeTheSameEndWithOneSetOfBlocks) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  const std::vector<TokenId> tokens = Tokens(33);
  SequenceKv a, b;
  BeginOptions begin;
  begin.tokens = tokens;
  begin.limit = 32;
  begin.promise = 33;
  begin.chunk = 33;
  BeginResult result;
  std::vector<BlockMove> moves;
  CacheMatch nothing;
  nothing.space = space;
  for (SequenceKv* kv : {&a, &b}) {
    ASSERT_TRUE(cache->Begin(*kv, nothing, begin, moves, &result));
    ASSERT_TRUE(cache->Grow(*kv, 0, 33, moves));
    cache->Announce(*kv, tokens, 33);
  }
  for (SequenceKv* kv : {&a, &b}) cache->Publish(*kv, tokens, 0, 33);
  EXPECT_EQ(cache->counts().merged, 2u);
  EXPECT_EQ(a.table()[0], b.table()[0]);
  EXPECT_EQ(a.table()[1], b.table()[1]);
  EXPECT_NE(a.table()[2], b.table()[2]);  // the tails are still being written
  EXPECT_EQ(cache->books().free, 64 - 4);
  cache->CheckIntegrity();
  cache->Release(a, tokens, 33, {});
  cache->Release(b, tokens, 33, {});
  EXPECT_EQ(cache->books().evictable, 3);
  cache->CloseSpace(space);
}

// Case P03: hits only within one tenant and salt; no pair can be read as another.
TEST(KvCache, NamespacesShareNothing) {
  Cache cache(256);
  const std::pair<const char*, const char*> names[] = {
      {"", ""}, {"", "x"}, {"x", ""}, {"", "xy"}, {"x", "y"}, {"xy", ""}, {"", "1:x"}, {"1:x", ""}};
  for (const auto& [tenant, salt] : names) {
    const int32_t space = cache->OpenSpace(tenant, salt);
    EXPECT_EQ(cache.Serve(space, Tokens(64)).hit, 0) << tenant << "/" << salt;
    EXPECT_EQ(cache.Serve(space, Tokens(64)).hit, 63);
    cache->CloseSpace(space);
  }
  // It lives on while it has blocks.
  const int32_t again = cache->OpenSpace("x", "y");
  EXPECT_EQ(cache.Serve(again, Tokens(64)).hit, 63);
  cache->CloseSpace(again);
}

TEST(KvCache, EveryReasonOfAMiss) {
  Cache cache(8);
  const int32_t space = cache->OpenSpace("", "");
  EXPECT_EQ(cache.Serve(space, Tokens(64)).reason, MissReason::kCold);
  EXPECT_EQ(cache.Missed(MissReason::kCold), 64u);
  EXPECT_EQ(cache.Serve(space, Tokens(64)).reason, MissReason::kPartialBlock);
  EXPECT_EQ(cache.Missed(MissReason::kPartialBlock), 1u);
  // Another namespace has it: counted, not told.
  const int32_t salted = cache->OpenSpace("", "salt");
  EXPECT_EQ(cache.Serve(salted, Tokens(64)).reason, MissReason::kCold);
  EXPECT_EQ(cache.Missed(MissReason::kSalt), 64u);
  cache->CloseSpace(salted);
  // Flushed by others: the ghosts remember.
  cache.Serve(space, Tokens(128, 1000));
  EXPECT_EQ(cache->Match(space, Tokens(64), 64).tokens, 0);
  EXPECT_EQ(cache.Serve(space, Tokens(64)).reason, MissReason::kEvicted);
  EXPECT_EQ(cache.Missed(MissReason::kEvicted), 64u);
  EXPECT_EQ(cache->counts().evicted_then_wanted, 4u);
  const ResetInfo reset = cache->Reset(false);
  EXPECT_GT(reset.freed_blocks, 0);
  EXPECT_EQ(cache->books().free, 8);
  EXPECT_EQ(cache.Serve(space, Tokens(64)).reason, MissReason::kReset);
  CacheHint hint;
  hint.expires_ns = 1000;
  cache.Serve(space, Tokens(32, 5000), hint);
  cache->Expire(999);
  EXPECT_EQ(cache->Match(space, Tokens(32, 5000), 32).tokens, 32);
  cache->Expire(1000);
  EXPECT_EQ(cache->Match(space, Tokens(32, 5000), 32).tokens, 0);
  EXPECT_EQ(cache.Evicted(EvictReason::kExpired), 2u);
  EXPECT_EQ(cache.Serve(space, Tokens(32, 5000)).reason, MissReason::kExpired);
  const CacheCounts counts = cache->counts();
  EXPECT_EQ(counts.hits + std::accumulate(counts.misses.begin(), counts.misses.end(), uint64_t{0}),
            counts.queries);
  cache->CloseSpace(space);
}

TEST(KvCache, PinsStayAndHaveABudget) {
  KvCacheOptions options;
  options.pin_budget = 0.5;
  Cache cache(8, options);
  const int32_t space = cache->OpenSpace("", "");
  cache.Serve(space, Tokens(64));
  const auto pin = cache->Pin(space, Tokens(64), 100);
  ASSERT_TRUE(pin.ok());
  EXPECT_EQ(pin->tokens, 64);
  EXPECT_EQ(pin->blocks, 4);
  for (int i = 0; i < 20; ++i) cache.Serve(space, Tokens(64, 1000 * (i + 1)));
  EXPECT_EQ(cache->Match(space, Tokens(64), 64).tokens, 64) << "a flood passed over it";
  const auto more = cache->Pin(space, Tokens(64, 20000), 100);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(more.status().message().find("4 of at most 4"), std::string::npos)
      << more.status().message();
  EXPECT_EQ(cache->Pin(space, Tokens(5, 777777), 100).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(cache->Reset(false).pinned_blocks, 4);
  EXPECT_EQ(cache->Match(space, Tokens(64), 64).tokens, 64);
  cache->Expire(100);
  EXPECT_EQ(cache->books().evictable, 4);
  EXPECT_FALSE(cache->Unpin(pin->id)) << "it has ended";
  cache->CloseSpace(space);
}

TEST(KvCache, ASessionCanBePinned) {
  Cache cache(16);
  const int32_t space = cache->OpenSpace("", "");
  CacheHint hint;
  hint.session = cache->Session(space, "chat");
  EXPECT_EQ(cache->PinSession(space, "chat", 100).status().code(), StatusCode::kNotFound);
  cache.Serve(space, Tokens(40), hint);
  const auto pin = cache->PinSession(space, "chat", 100);
  ASSERT_TRUE(pin.ok());
  EXPECT_EQ(pin->tokens, 40);
  EXPECT_EQ(cache->UnpinSession(space, "chat"), 1);
  EXPECT_EQ(cache->books().pinned, 0);
  cache->CloseSpace(space);
}

TEST(KvCache, AnOwnerAboveItsQuotaEvictsItsOwn) {
  KvCacheOptions options;
  options.evict = "lru";
  options.tenant_quota = 0.5;
  Cache cache(16, options);
  const int32_t quiet = cache->OpenSpace("", "quiet");
  const int32_t loud = cache->OpenSpace("", "loud");
  cache.Serve(quiet, Tokens(64));
  for (int i = 0; i < 20; ++i) cache.Serve(loud, Tokens(64, 1000 * (i + 1)));
  EXPECT_EQ(cache->Match(quiet, Tokens(64), 64).tokens, 64);
  EXPECT_GT(cache.Evicted(EvictReason::kQuota), 0u);
  cache->CloseSpace(quiet);
  cache->CloseSpace(loud);
}

TEST(KvCache, SwappedBlocksComeBackAndTheIndexIsAskedFirst) {
  KvCacheOptions options;
  options.host_slots = 4;
  Cache cache(8, options);
  const int32_t space = cache->OpenSpace("", "");
  const std::vector<TokenId> tokens = Tokens(50);
  SequenceKv kv;
  cache.Start(kv, space, tokens);
  std::vector<BlockMove> moves;
  ASSERT_TRUE(cache->SwapOut(kv, tokens, 50, moves));
  EXPECT_EQ(moves.size(), 4u);
  EXPECT_EQ(cache->free_host_slots(), 0);
  EXPECT_EQ(cache->books().evictable, 4);
  cache.Serve(space, Tokens(96, 1000));  // evicts two of the four
  BeginOptions begin;
  begin.promise = 51;
  begin.chunk = 16;
  begin.count = false;
  BeginResult result;
  moves.clear();
  ASSERT_TRUE(cache->Begin(kv, cache->Match(space, tokens, 50), begin, moves, &result));
  EXPECT_EQ(result.computed, 50);
  EXPECT_EQ(result.hit + result.swapped_in, 50);
  EXPECT_EQ(static_cast<int32_t>(moves.size()), (result.swapped_in + kBlock - 1) / kBlock);
  EXPECT_EQ(cache->free_host_slots(), 4);
  cache->Release(kv, tokens, 50, {});
  cache->CloseSpace(space);
}

TEST(KvCache, LastUseGoesFirst) {
  for (const char* policy : {"cost"}) {
    KvCacheOptions options;
    options.evict = policy;
    Cache cache(16, options);
    const int32_t space = cache->OpenSpace("", "");
    cache.Serve(space, Tokens(64));
    CacheHint hint;
    hint.last_use = true;
    cache.Serve(space, Tokens(128, 1000), hint);
    cache.Serve(space, Tokens(128, 2000));
    EXPECT_EQ(cache->Match(space, Tokens(64), 64).tokens, 64);
    EXPECT_EQ(cache->Match(space, Tokens(128, 1000), 128).tokens, 64) << "its deeper half";
    cache->CloseSpace(space);
  }
}

// Made-up layouts: full + window, full + chunked, only a window (then group 0 has no bytes).
TEST(KvCache, AWindowedGroupNeedsOnlyTheEndAndLetsTheRestGo) {
  KvCacheOptions options;
  KvGroup window;
  window.rule = GroupRule::kWindow;
  window.window = 32;
  options.groups.push_back(window);
  options.blocks = {64, 6};
  Cache cache(options);
  const int32_t space = cache->OpenSpace("", "");
  const std::vector<TokenId> tokens = Tokens(160);
  SequenceKv kv;
  BeginOptions begin;
  begin.tokens = tokens;
  begin.limit = 159;
  begin.promise = 160;
  begin.chunk = 16;
  BeginResult result;
  std::vector<BlockMove> moves;
  const CacheMatch cold = cache->Match(space, tokens, 159);
  EXPECT_TRUE(cache->Fits(cold, kv, 160, 16, 0)) << "5 blocks of the window group are enough";
  ASSERT_TRUE(cache->Begin(kv, cold, begin, moves, &result));
  for (int32_t at = 0; at < 160; at += 16) {
    ASSERT_TRUE(cache->Grow(kv, at, at + 16, moves));
    cache->Announce(kv, tokens, at + 16);
    cache->Publish(kv, tokens, at, at + 16);
    cache->CheckIntegrity();
  }
  EXPECT_EQ(kv.table(0).size(), 10u);
  EXPECT_EQ(kv.table(1)[7], -1) << "passed by the window";
  EXPECT_GE(kv.table(1)[8], 0);
  cache->Release(kv, tokens, 160, {});
  // The whole prefix can be used: the window's last blocks are there.
  EXPECT_EQ(cache->Match(space, tokens, 160).tokens, 160);
  // A shorter prefix cannot: its window's blocks went when the pool of six was needed.
  EXPECT_EQ(cache->Match(space, tokens, 64).tokens, 0);
  EXPECT_GT(cache.Evicted(EvictReason::kWindow), 0u);
  cache->CloseSpace(space);
}

TEST(KvCache, AChunkedGroupNeedsNothingAtTheBeginningOfAChunk) {
  KvCacheOptions options;
  KvGroup chunked;
  chunked.rule = GroupRule::kChunked;
  chunked.window = 64;
  options.groups.push_back(chunked);
  options.blocks = {64, 64};
  Cache cache(options);
  const int32_t space = cache->OpenSpace("", "");
  cache.Serve(space, Tokens(129));
  EXPECT_EQ(options.groups[1].FirstNeeded(128), 128);
  EXPECT_EQ(cache->Match(space, Tokens(200), 200).tokens, 129);
  SequenceKv kv;
  const BeginResult result = cache.Start(kv, space, Tokens(200));
  EXPECT_EQ(result.computed, 129);
  EXPECT_EQ(kv.table(1)[3], -1) << "of an earlier chunk";
  cache->Release(kv, Tokens(200), 200, {});
  cache->CloseSpace(space);
}

TEST(KvCache, OptionsNameWhatIsWrong) {
  KvCacheOptions options;
  options.blocks = {8};
  options.evict = "best";
  EXPECT_NE(KvCache::Make(options).status().message().find("s3fifo"), std::string::npos);
  options.evict = "lru";
  options.block_tokens = 12;
  EXPECT_NE(KvCache::Make(options).status().message().find("power of two"), std::string::npos);
  options.block_tokens = 16;
  options.groups[0].rule = GroupRule::kWindow;
  EXPECT_FALSE(KvCache::Make(options).ok());
}

TEST(KvCache, WithoutPrefixCachingNothingStays) {
  KvCacheOptions options;
  options.prefix_caching = false;
  Cache cache(16, options);
  const int32_t space = cache->OpenSpace("", "");
  cache.Serve(space, Tokens(64));
  EXPECT_EQ(cache->books().free, 16);
  EXPECT_EQ(cache.Serve(space, Tokens(64)).hit, 0);
  cache->CloseSpace(space);
}

}  // namespace
}  // namespace kvasir
