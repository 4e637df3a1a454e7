// What a client might do to others, to the memory or to the promises of KvCache; each was a defect.
#include <gtest/gtest.h>

#include "kvcache/test_cache.h"

namespace kvasir {
namespace {

using namespace testing_cache;  // NOLINT(google-build-using-namespace)

TEST(KvCacheAbuse, TheReasonToldSaysNothingOfOtherNamespaces) {
  MissReason told[2];
  for (int victim = 0; victim < 2; ++victim) {
    Cache cache(64);
    const int32_t a = cache->OpenSpace("", "attacker"), v = cache->OpenSpace("", "victim");
    cache.Serve(v, victim ? Tokens(64) : Tokens(64, 9000));
    CacheHint hint;
    hint.expires_ns = 1;
    cache.Serve(a, Tokens(32), hint);
    cache->Expire(1);
    told[victim] = cache.Serve(a, Tokens(64)).reason;
    cache->CloseSpace(a);
    cache->CloseSpace(v);
  }
  EXPECT_EQ(told[0], told[1]);
}

TEST(KvCacheAbuse, ATtlIsKeptWhateverOthersAskedFor) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  CacheHint day;
  day.expires_ns = 86'400'000'000'000;
  for (int i = 0; i < 100; ++i) cache.Serve(space, Tokens(64, 1000 * (i + 1)), day);
  CacheHint second;
  second.expires_ns = 1'000'000'000;
  cache.Serve(space, Tokens(64, 500000), second);
  cache->Expire(2'000'000'000);
  EXPECT_EQ(cache->Match(space, Tokens(64, 500000), 64).tokens, 0) << "ttl_s of 1 s is over";
  cache->CloseSpace(space);
}

TEST(KvCacheAbuse, APinEndsByThePromptThatMadeIt) {
  int lost = 0;
  for (int others = 0; others < 20; ++others) {
    Cache cache(256);
    const int32_t space = cache->OpenSpace("", "");
    cache.Serve(space, Tokens(40));
    EXPECT_TRUE(cache->Pin(space, Tokens(40), 100).ok());
    for (int i = 0; i < others; ++i) {
      std::vector<TokenId> longer = Tokens(48);
      longer[44] = 5000 + 7 * i;
      cache.Serve(space, longer);
    }
    lost += cache->UnpinTokens(space, Tokens(40)) == 0 ? 1 : 0;
    cache->CloseSpace(space);
  }
  EXPECT_EQ(lost, 0) << "of 20 pins could not be ended by the prompt they were made with";
}

TEST(KvCacheAbuse, LastUseGivesAwayOnlyWhatTheRequestMade) {
  for (const bool last_use : {false, true}) {
    Cache cache(64);
    const int32_t space = cache->OpenSpace("", "");
    CacheHint high;
    high.retain = Retain::kHigh;
    cache.Serve(space, Tokens(320), high);
    for (int i = 0; i < 100; ++i) cache.Serve(space, Tokens(320));
    CacheHint hint;
    hint.last_use = last_use;
    cache.Serve(space, Tokens(320), hint);  // anybody who knows the system prompt
    for (int i = 0; i < 4; ++i) cache.Serve(space, Tokens(320, 10000 * (i + 1)));
    const int32_t left = cache->Match(space, Tokens(320), 320).tokens;
    EXPECT_EQ(left, 320);
    cache->CloseSpace(space);
  }
}

TEST(KvCacheAbuse, ATtlConcernsOnlyWhatTheRequestMade) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  for (int i = 0; i < 100; ++i) cache.Serve(space, Tokens(320));
  CacheHint hint;
  hint.expires_ns = 1;
  cache.Serve(space, Tokens(320), hint);
  cache->Expire(1);
  EXPECT_EQ(cache->Match(space, Tokens(320), 320).tokens, 320) << "made by others, 100 hits";
  cache->CloseSpace(space);
}

TEST(KvCacheAbuse, ATtlHoldsForAPromptWithTwoChoices) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  SequenceKv a, b;
  std::vector<TokenId> ta = Tokens(70);
  cache.Start(a, space, ta);
  cache->Fork(a, b);
  std::vector<TokenId> tb = ta;
  std::vector<BlockMove> moves;
  for (int i = 0; i < 30; ++i) {
    for (auto* s : {&a, &b}) {
      auto& t = s == &a ? ta : tb;
      t.push_back(s == &a ? 1 : 2);
      const int32_t n = static_cast<int32_t>(t.size());
      ASSERT_TRUE(cache->Grow(*s, n - 1, n, moves));
      cache->Publish(*s, t, n - 1, n);
    }
  }
  CacheHint hint;
  hint.expires_ns = 1000;
  cache->Release(a, ta, 100, hint);
  cache->Release(b, tb, 100, hint);
  cache->CheckIntegrity();
  cache->Expire(2000);
  EXPECT_EQ(cache->Match(space, ta, 100).tokens, 0) << "tokens still there after ttl_s";
  cache->CloseSpace(space);
}

TEST(KvCacheAbuse, ATtlThatWasOverUnderAPinIsKeptAfterIt) {
  Cache cache(64);
  const int32_t space = cache->OpenSpace("", "");
  CacheHint hint;
  hint.expires_ns = 1000;
  cache.Serve(space, Tokens(64), hint);
  EXPECT_TRUE(cache->Pin(space, Tokens(64), 1500).ok());
  cache->Expire(1200);
  cache->Expire(1600);
  cache->Expire(1 << 30);
  EXPECT_EQ(cache->Match(space, Tokens(64), 64).tokens, 0) << "ttl and pin are over";
  cache->CloseSpace(space);
}

TEST(KvCacheAbuse, ThePrefixPinnedAgainIsOnePin) {
  Cache cache(4096);
  const int32_t space = cache->OpenSpace("", "");
  cache.Serve(space, Tokens(16000));
  const auto first = cache->Pin(space, Tokens(16000), 100);
  ASSERT_TRUE(first.ok());
  for (int i = 0; i < 1000; ++i) {
    const auto again = cache->Pin(space, Tokens(16000), 50 + i);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->id, first->id);
  }
  EXPECT_EQ(cache->pins().size(), 1u);
  EXPECT_EQ(cache->pins().front().expires_ns, 1049) << "as long as the longest";
  cache->Expire(1048);
  EXPECT_EQ(cache->books().pinned, 1000);
  cache->Expire(1049);
  EXPECT_EQ(cache->books().pinned, 0);
  cache->CloseSpace(space);
}

TEST(KvCacheAbuse, TheNumberOfPinsHasALimit) {
  KvCacheOptions options;
  options.pin_budget = 1;
  Cache cache(4096, options);
  const int32_t space = cache->OpenSpace("", "");
  Status refused;
  int accepted = 0;
  for (int i = 0; i < 2000 && refused.ok(); ++i) {
    cache.Serve(space, {i, 1});
    const auto pin = cache->Pin(space, std::vector<TokenId>{i, 1}, 100);
    refused = pin.ok() ? Status::Ok() : pin.status();
    accepted += pin.ok() ? 1 : 0;
  }
  EXPECT_EQ(accepted, 1024);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("1024"), std::string::npos);
  cache->CloseSpace(space);
}

}  // namespace
}  // namespace kvasir
