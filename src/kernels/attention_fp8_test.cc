// fp8 caches give the bits of an f32 cache that holds the decoded values, in every mix of float
// formats, on every path, for any cut.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_fixture_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr KvType kFloats[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kFp8E4M3,
                              KvType::kFp8E5M2};

// The values a format gives back of rows of `heads` heads.
std::vector<float> Decoded(KvType type, const std::vector<float>& rows, int dim) {
  std::vector<float> out(rows.size());
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(dim)) {
    std::vector<uint8_t> codes(static_cast<size_t>(dim));
    float scale = 1.0F;
    if (type == KvType::kFp8E4M3) scale = F16ToF32(EncodeE4M3(&rows[at], dim, codes.data()));
    for (size_t i = 0; i < codes.size(); ++i) {
      const float x = rows[at + i];
      out[at + i] = type == KvType::kFp8E4M3   ? E4M3ToF32(codes[i]) * scale
                    : type == KvType::kFp8E5M2 ? E5M2ToF32(F32ToE5M2(x))
                    : type == KvType::kF16     ? F16ToF32(F32ToF16(x))
                    : type == KvType::kBf16    ? Bf16ToF32(F32ToBf16(x))
                                               : x;
    }
  }
  return out;
}

std::vector<float> Attend(const AttentionCase& c, const TestSequence& s, uint64_t seed, int workers,
                          bool cut) {
  const TestCache cache(c, 1, s.tokens, seed);
  ShuffleExecutor executor(workers, seed);
  AttentionScratch scratch;
  const auto ldo = static_cast<size_t>(c.query_heads() * c.v_dim);
  std::vector<float> out(static_cast<size_t>(s.tokens) * ldo, -1.0F);
  Rng rng(seed);
  for (int done = 0; done < s.tokens;) {
    const int left = s.tokens - done;
    const int n = cut ? std::min(left, 1 + static_cast<int>(rng.Below(90))) : left;
    const AttentionSpanOfSequence rows[] = {cache.Rows(0, done, n, done)};
    WriteKv(cache.kv(), rows, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
    PagedAttention(cache.kv(), rows, c.query_heads(), c.scale, s.q.data(), s.ldq, out.data(), ldo,
                   scratch, executor);
    done += n;
  }
  return out;
}

TEST(Fp8Attention, IsF32AttentionOverTheDecodedValues) {
  for (uint64_t seed = kSeed; seed < kSeed + 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    AttentionCase c;
    c.k_type = kFloats[rng.Below(5)];
    c.v_type = kFloats[3 + rng.Below(2)];
    if (rng.Below(3) == 0) std::swap(c.k_type, c.v_type);
    c.block_tokens = 8 << rng.Below(6);
    c.kv_heads = 1 + static_cast<int>(rng.Below(3));
    c.group = 1 + static_cast<int>(rng.Below(5));
    const int dims[] = {1, 8, 20, 64, 80, 112};
    c.k_dim = dims[rng.Below(6)];
    c.v_dim = dims[rng.Below(6)];
    const int tokens = 1 + static_cast<int>(rng.Below(400));
    TestSequence s(c, tokens, rng);
    for (size_t i = 0; i < s.v.size(); i += 7) s.v[i] *= 0.001F;  // subnormals of fp8
    TestSequence decoded = s;
    decoded.k = Decoded(c.k_type, s.k, c.k_dim);
    decoded.v = Decoded(c.v_type, s.v, c.v_dim);
    AttentionCase plain = c;
    plain.k_type = plain.v_type = KvType::kF32;
    std::vector<float> first;
    for (const Isa isa : SupportedIsas()) {
      if (isa == Isa::kPortable && tokens > 150) continue;  // slow
      const ScopedIsa scoped(isa);
      const std::vector<float> want = Attend(plain, decoded, seed, 1, false);
      const std::vector<float> got = Attend(c, s, seed, 3, true);
      if (first.empty()) first = want;
      ASSERT_EQ(std::memcmp(first.data(), want.data(), want.size() * sizeof(float)), 0);
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
          << IsaName(isa) << " " << c.Text();
    }
  }
}

// Infinity in e5m2 and anything not finite in e4m3 make the rows that see it NaN, and no other.
TEST(Fp8Attention, PoisonStaysWithItsToken) {
  for (const KvType type : {KvType::kFp8E4M3, KvType::kFp8E5M2}) {
    AttentionCase c{type, type, 16, 1, 2, 16, 16, 0.25F};
    Rng rng(kSeed);
    TestSequence s(c, 70, rng);
    const std::vector<float> before = Attend(c, s, kSeed, 1, false);
    s.v[33 * s.ldv + 3] = NAN;
    s.v[33 * s.ldv + 4] = INFINITY;
    const std::vector<float> after = Attend(c, s, kSeed, 1, false);
    for (size_t i = 0; i < after.size(); ++i) {
      if (i / 32 < 33) {
        ASSERT_EQ(before[i], after[i]);
      } else if (i % 16 == 3) {
        ASSERT_FALSE(std::isfinite(after[i]));
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
