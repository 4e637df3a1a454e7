// Writing into the cache: the layout of quant/kv_format.h and the bits of quant/float16.h, on every
// path.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "kernels/attention_fixture_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 77;

uint32_t Expected(KvType type, float f) {
  if (type == KvType::kF32) return std::bit_cast<uint32_t>(f);
  return type == KvType::kF16 ? F32ToF16(f) : F32ToBf16(f);
}

// Any bit pattern, so also NaN, infinities, subnormals and ties.
std::vector<float> RandomPatterns(Rng& rng, size_t n) {
  std::vector<float> out(n);
  for (float& f : out) {
    auto bits = static_cast<uint32_t>(rng.Next());
    switch (rng.Below(4)) {
      case 0:
        bits &= 0xFFFF8000u;  // exact, or a tie of bf16
        break;
      case 1:
        bits &= 0xFFFFF000u;  // exact, or a tie of f16
        break;
      case 2:
        bits = (bits & 0x8FFFFFFFu) | 0x30000000u;  // near f16's smallest numbers
        break;
      default:
        break;
    }
    std::memcpy(&f, &bits, sizeof(f));
  }
  return out;
}

TEST(KvWrite, StoresTheReferenceBits) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    Rng rng(kSeed);
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
      for (size_t n : {1u, 7u, 8u, 9u, 15u, 16u, 17u, 40u, 4096u}) {
        const std::vector<float> in = RandomPatterns(rng, n);
        const size_t bytes = KvElementBytes(type);
        std::vector<std::byte> out(n * bytes + 8, std::byte{0xA5});
        internal::CurrentAttention().store(type, in.data(), out.data(), n);
        for (size_t i = 0; i < n; ++i) {
          uint32_t got = 0;
          std::memcpy(&got, out.data() + i * bytes, bytes);
          ASSERT_EQ(got, Expected(type, in[i]))
              << IsaName(isa) << " " << KvTypeName(type) << " " << std::bit_cast<uint32_t>(in[i]);
        }
        for (size_t i = n * bytes; i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xA5}) << n;
      }
    }
  }
}

// Every f16 value survives F16 -> F32 -> F16, and so does its neighbourhood of ties.
TEST(KvWrite, EveryHalfAndItsTies) {
  std::vector<float> in;
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto bits = std::bit_cast<uint32_t>(F16ToF32(static_cast<uint16_t>(h)));
    for (const uint32_t offset : {0u, 0xFFFu, 0x1000u, 0x1001u}) {
      in.push_back(std::bit_cast<float>(bits + offset));
    }
  }
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    std::vector<uint16_t> out(in.size());
    internal::CurrentAttention().store(KvType::kF16, in.data(),
                                       reinterpret_cast<std::byte*>(out.data()), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], F32ToF16(in[i])) << IsaName(isa) << " " << std::bit_cast<uint32_t>(in[i]);
    }
  }
}

// Tokens of a batch land at the index the format names, and no other byte changes.
TEST(KvWrite, LandsWhereTheFormatSays) {
  for (uint64_t seed = kSeed; seed < kSeed + 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    AttentionCase c;
    c.k_type = static_cast<KvType>(rng.Below(3));
    c.v_type = static_cast<KvType>(rng.Below(3));
    c.block_tokens = 8 << rng.Below(6);
    c.kv_heads = 1 + static_cast<int>(rng.Below(3));
    c.k_dim = 1 + static_cast<int>(rng.Below(150));
    c.v_dim = 1 + static_cast<int>(rng.Below(150));
    constexpr int kTokens = 300;
    const TestSequence s(c, 2 * kTokens, rng);
    const TestCache cache(c, 2, kTokens, seed);
    const std::vector<std::byte> before = cache.bytes();
    const int position = static_cast<int>(rng.Below(200));
    const int n = 1 + static_cast<int>(rng.Below(100));
    const AttentionSpanOfSequence rows[] = {cache.Rows(0, position, n, 0), cache.Rows(1, 5, 1, n)};
    ShuffleExecutor executor(3, seed);
    WriteKv(cache.kv(), rows, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
    for (int i = 0; i <= n; ++i) {
      const int sequence = i < n ? 0 : 1;
      const int token = i < n ? position + i : 5;
      for (int head = 0; head < c.kv_heads; ++head) {
        for (int ch = 0; ch < c.k_dim; ++ch) {
          const float in =
              s.k[static_cast<size_t>(i) * s.ldk + static_cast<size_t>(head * c.k_dim + ch)];
          ASSERT_EQ(Expected(c.k_type, cache.Key(sequence, token, head, ch)),
                    Expected(c.k_type, in));
        }
        for (int ch = 0; ch < c.v_dim; ++ch) {
          const float in =
              s.v[static_cast<size_t>(i) * s.ldv + static_cast<size_t>(head * c.v_dim + ch)];
          ASSERT_EQ(Expected(c.v_type, cache.Value(sequence, token, head, ch)),
                    Expected(c.v_type, in));
        }
      }
    }
    size_t changed = 0;
    for (size_t i = 0; i < before.size(); ++i) changed += before[i] != cache.bytes()[i] ? 1u : 0u;
    const size_t per_token = s.ldk * KvElementBytes(c.k_type) + s.ldv * KvElementBytes(c.v_type);
    ASSERT_LE(changed, static_cast<size_t>(n + 1) * per_token);
  }
}

}  // namespace
}  // namespace kvasir
