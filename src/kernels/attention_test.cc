#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention_fixture_test.h"
#include "kernels/attention_plan.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16};
constexpr int kDims[] = {1, 3, 8, 16, 24, 40, 48, 64, 80, 96, 112, 128, 192};

template <typename T, size_t N>
T Pick(Rng& rng, const T (&from)[N]) {
  return from[rng.Below(N)];
}

AttentionCase RandomCase(Rng& rng) {
  AttentionCase c;
  c.k_type = Pick(rng, kTypes);
  c.v_type = Pick(rng, kTypes);
  c.block_tokens = 8 << rng.Below(6);
  c.kv_heads = 1 + static_cast<int>(rng.Below(3));
  c.group = 1 + static_cast<int>(rng.Below(rng.Below(4) == 0 ? 20 : 4));
  c.k_dim = Pick(rng, kDims);
  c.v_dim = rng.Below(2) == 0 ? c.k_dim : Pick(rng, kDims);
  c.scale = 1.0F / std::sqrt(static_cast<float>(c.k_dim));
  return c;
}

std::vector<float> OutputOf(const AttentionCase& c, int rows) {
  return std::vector<float>(static_cast<size_t>(rows * c.query_heads() * c.v_dim), -123.0F);
}

// Writes the tokens of one chunk and attends from them; rows land where they stand in the sequence.
void RunChunk(const AttentionCase& c, const TestCache& cache, const TestSequence& s, int position,
              int tokens, std::vector<float>& out, AttentionScratch& scratch, Executor& executor) {
  const AttentionSpanOfSequence rows[] = {cache.Rows(0, position, tokens, position)};
  WriteKv(cache.kv(), rows, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
  PagedAttention(cache.kv(), rows, c.query_heads(), c.scale, s.q.data(), s.ldq, out.data(),
                 static_cast<size_t>(c.query_heads() * c.v_dim), scratch, executor);
}

std::vector<float> RunWhole(const AttentionCase& c, const TestCache& cache, const TestSequence& s,
                            Executor& executor) {
  AttentionScratch scratch;
  std::vector<float> out = OutputOf(c, s.tokens);
  RunChunk(c, cache, s, 0, s.tokens, out, scratch, executor);
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One row in double precision, and how far the float result may be from it. With u = 2^-24:
//   a score is k_dim fma on a q rounded once: off by (k_dim + 2) u sum|q k|; s - max rounds: u |s -
//   max|; Exp is off by 2e-7 of its value, and an exponential smaller than e^-87 becomes 0; each of
//   the folds multiplies by another such Exp (its argument also rounded once) and rounds three
//   times; numerator: a chain of at most 256 fma; denominator: 16 + 4 additions; the quotient: 2.
// Numerator and denominator are each off by `relative`, so the quotient by twice that, of sum p|v|
// / sum p.
void ExpectRowNear(const AttentionCase& c, const TestCache& cache, const TestSequence& s, int row,
                   int head, const float* out) {
  constexpr double kU = 0x1.0p-24;
  const int kv_head = head / c.group;
  const float* q = s.q.data() + static_cast<size_t>(row) * s.ldq + head * c.k_dim;
  std::vector<double> score(static_cast<size_t>(row) + 1, 0.0);
  double score_error = 0;
  for (size_t t = 0; t < score.size(); ++t) {
    double size = 0;
    for (int ch = 0; ch < c.k_dim; ++ch) {
      const double x =
          static_cast<double>(q[ch]) * c.scale * cache.Key(0, static_cast<int>(t), kv_head, ch);
      score[t] += x;
      size += std::fabs(x);
    }
    score_error = std::max(score_error, (c.k_dim + 2) * kU * size);
  }
  const double max = *std::max_element(score.begin(), score.end());
  const double range = max - *std::min_element(score.begin(), score.end());
  const double spans = row / kAttentionSpan + 1;
  const double exp_error = 2e-7 + kU * range;
  const double relative =
      score_error + exp_error + spans * (exp_error + 3 * kU) + (kAttentionSpan + 2) * kU;
  double sum = 0;
  for (const double x : score) sum += std::exp(x - max);
  for (int ch = 0; ch < c.v_dim; ++ch) {
    double value = 0, size = 0;
    for (size_t t = 0; t < score.size(); ++t) {
      const double v = cache.Value(0, static_cast<int>(t), kv_head, ch);
      value += std::exp(score[t] - max) / sum * v;
      size += std::exp(score[t] - max) / sum * std::fabs(v);
    }
    ASSERT_NEAR(out[ch], value, 2 * relative * size + 1e-30)
        << c.Text() << " row " << row << " head " << head << " channel " << ch;
  }
}

TEST(Attention, NearDoublePrecision) {
  for (uint64_t seed = kSeed; seed < kSeed + 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = RandomCase(rng);
    const int tokens = 1 + static_cast<int>(rng.Below(700));
    const TestSequence s(c, tokens, rng);
    const TestCache cache(c, 1, tokens, seed);
    SerialExecutor serial;
    const std::vector<float> out = RunWhole(c, cache, s, serial);
    for (int i = 0; i < 12; ++i) {
      const int row = i == 0 ? 0 : static_cast<int>(rng.Below(static_cast<uint64_t>(tokens)));
      const int head = static_cast<int>(rng.Below(static_cast<uint64_t>(c.query_heads())));
      ASSERT_NO_FATAL_FAILURE(ExpectRowNear(c, cache, s, row, head,
                                            out.data() + (row * c.query_heads() + head) * c.v_dim));
    }
  }
}

// Latent attention's shape: 576 channels of K, 512 of V, many query heads on one KV head.
TEST(Attention, WideHeads) {
  AttentionCase c{KvType::kBf16, KvType::kF16, 32, 1, 16, 576, 512, 0.05F};
  Rng rng(kSeed);
  const TestSequence s(c, 40, rng);
  const TestCache cache(c, 1, 40, kSeed);
  ShuffleExecutor executor(3, 1);
  const std::vector<float> out = RunWhole(c, cache, s, executor);
  for (const int row : {0, 17, 39}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectRowNear(c, cache, s, row, row % 16, out.data() + (row * 16 + row % 16) * c.v_dim));
  }
}

// A single token has weight one: the output is V as the cache holds it. All values of both 16-bit
// formats.
TEST(Attention, OneTokenGivesItsValue) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    for (const KvType type : {KvType::kF16, KvType::kBf16}) {
      AttentionCase c{KvType::kF32, type, 8, 128, 1, 2, 512, 1.0F};
      Rng rng(kSeed);
      TestSequence s(c, 1, rng);
      for (size_t i = 0; i < 65536; ++i) {
        const auto h = static_cast<uint16_t>(i);
        s.v[i] = type == KvType::kF16 ? F16ToF32(h) : Bf16ToF32(h);
      }
      const TestCache cache(c, 1, 1, kSeed);
      SerialExecutor serial;
      const std::vector<float> out = RunWhole(c, cache, s, serial);
      for (size_t i = 0; i < 65536; ++i) {
        if (std::isnan(s.v[i])) {
          ASSERT_TRUE(std::isnan(out[i])) << IsaName(isa) << " " << i;
        } else {
          ASSERT_EQ(out[i], s.v[i]) << IsaName(isa) << " " << KvTypeName(type) << " " << i;
        }
      }
    }
  }
}

TEST(Attention, PathsGiveTheSameBits) {
  for (uint64_t seed = kSeed; seed < kSeed + 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = RandomCase(rng);
    const int tokens = 1 + static_cast<int>(rng.Below(400));
    // Everything is written, the last rows attend: the portable path is slow.
    const int n = std::min(tokens, 1 + static_cast<int>(rng.Below(12)));
    const TestSequence s(c, tokens, rng);
    std::vector<float> first;
    std::vector<std::byte> first_bytes;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scoped(isa);
      const TestCache cache(c, 1, tokens, seed);
      SerialExecutor serial;
      AttentionScratch scratch;
      std::vector<float> out = OutputOf(c, tokens);
      const AttentionSpanOfSequence past[] = {cache.Rows(0, 0, tokens - n, 0)};
      WriteKv(cache.kv(), past, s.k.data(), s.ldk, s.v.data(), s.ldv, serial);
      RunChunk(c, cache, s, tokens - n, n, out, scratch, serial);
      if (first.empty()) {
        first = out;
        first_bytes = cache.bytes();
      }
      ASSERT_TRUE(SameBits(first, out)) << IsaName(isa) << " " << c.Text() << " tokens " << tokens;
      ASSERT_TRUE(first_bytes == cache.bytes()) << IsaName(isa) << " " << c.Text();
    }
  }
}

// Every head size, with and without rest vectors.
TEST(Attention, PathsAgreeOnEveryHeadSize) {
  for (int dim = 1; dim <= 576; dim += dim < 140 ? 1 : 37) {
    AttentionCase c{Pick(*std::make_unique<Rng>(dim), kTypes),
                    KvType::kF16,
                    16,
                    1,
                    1 + dim % 13,
                    dim,
                    dim,
                    0.1F};
    c.v_type = kTypes[dim % 3];
    Rng rng(static_cast<uint64_t>(dim));
    const TestSequence s(c, 21, rng);
    std::vector<float> first;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scoped(isa);
      const TestCache cache(c, 1, 21, kSeed);
      SerialExecutor serial;
      const std::vector<float> out = RunWhole(c, cache, s, serial);
      if (first.empty()) first = out;
      ASSERT_TRUE(SameBits(first, out)) << IsaName(isa) << " " << c.Text();
    }
  }
}

TEST(Attention, BlockSizeDoesNotMatter) {
  Rng rng(kSeed);
  AttentionCase c;
  const TestSequence s(c, 600, rng);
  std::vector<float> first;
  for (const int block_tokens : {8, 16, 32, 64, 128, 256}) {
    c.block_tokens = block_tokens;
    const TestCache cache(c, 1, 600, kSeed);
    SerialExecutor serial;
    const std::vector<float> out = RunWhole(c, cache, s, serial);
    if (first.empty()) first = out;
    ASSERT_TRUE(SameBits(first, out)) << block_tokens;
  }
}

TEST(Attention, ChunksAndThreadsDoNotMatter) {
  for (uint64_t seed = kSeed; seed < kSeed + 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = RandomCase(rng);
    const int tokens = 1 + static_cast<int>(rng.Below(900));
    const TestSequence s(c, tokens, rng);
    const TestCache whole(c, 1, tokens, seed);
    SerialExecutor serial;
    const std::vector<float> expected = RunWhole(c, whole, s, serial);

    const TestCache cache(c, 1, tokens, seed + 1);
    ShuffleExecutor shuffled(1 + static_cast<int>(rng.Below(9)), seed);
    ThreadExecutor threads(1 + static_cast<int>(rng.Below(4)));
    AttentionScratch scratch;
    std::vector<float> out = OutputOf(c, tokens);
    for (int position = 0; position < tokens;) {
      const uint64_t longest = rng.Below(2) == 0 ? 8 : 400;
      const int left = tokens - position;
      const int n = std::min(left, 1 + static_cast<int>(rng.Below(longest)));
      Executor* executor = &shuffled;
      if (rng.Below(4) == 0) executor = &threads;
      RunChunk(c, cache, s, position, n, out, scratch, *executor);
      position += n;
    }
    ASSERT_TRUE(SameBits(expected, out)) << c.Text() << " tokens " << tokens;
  }
}

// A batch of prefill chunks and decodes of several sequences against each row alone, in a cache
// that holds nothing past the row.
TEST(Attention, NeighboursDoNotMatter) {
  for (uint64_t seed = kSeed; seed < kSeed + 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = RandomCase(rng);
    constexpr int kSequences = 5;
    constexpr int kTokens = 560;
    const TestSequence s(c, kTokens * kSequences, rng);  // row = sequence * kTokens + position
    const TestCache cache(c, kSequences, kTokens, seed);
    ShuffleExecutor executor(4, seed);
    std::vector<AttentionSpanOfSequence> past, now;
    for (int i = 0; i < kSequences; ++i) {
      const int position = static_cast<int>(rng.Below(kTokens - 1));
      const int most = kTokens - position;
      const int n =
          rng.Below(2) == 0 ? 1 : 1 + static_cast<int>(rng.Below(static_cast<uint64_t>(most)));
      past.push_back(cache.Rows(i, 0, position, i * kTokens));
      now.push_back(cache.Rows(i, position, n, i * kTokens + position));
    }
    now.push_back(cache.Rows(0, 3, 0, 0));  // no tokens: nothing happens
    const size_t ldo = static_cast<size_t>(c.query_heads() * c.v_dim);
    std::vector<float> out = OutputOf(c, s.tokens);
    AttentionScratch scratch;
    WriteKv(cache.kv(), past, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
    WriteKv(cache.kv(), now, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
    PagedAttention(cache.kv(), now, c.query_heads(), c.scale, s.q.data(), s.ldq, out.data(), ldo,
                   scratch, executor);
    for (int i = 0; i < kSequences; ++i) {
      const AttentionSpanOfSequence& chunk = now[static_cast<size_t>(i)];
      const int t = static_cast<int>(rng.Below(static_cast<uint64_t>(chunk.tokens)));
      const int row = chunk.row + t;
      const TestCache alone(c, 1, kTokens, seed + 7);
      SerialExecutor serial;
      std::vector<float> single = OutputOf(c, s.tokens);
      const AttentionSpanOfSequence fill[] = {
          alone.Rows(0, 0, chunk.position + t + 1, i * kTokens)};
      const AttentionSpanOfSequence last[] = {alone.Rows(0, chunk.position + t, 1, row)};
      WriteKv(alone.kv(), fill, s.k.data(), s.ldk, s.v.data(), s.ldv, serial);
      PagedAttention(alone.kv(), last, c.query_heads(), c.scale, s.q.data(), s.ldq, single.data(),
                     ldo, scratch, serial);
      ASSERT_EQ(std::memcmp(out.data() + row * ldo, single.data() + row * ldo, ldo * sizeof(float)),
                0)
          << c.Text() << " sequence " << i << " position " << chunk.position + t;
    }
  }
}

// A later token of the same chunk, here not even a number, changes nothing for the rows before it.
TEST(Attention, RowsDoNotSeeLaterTokens) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    for (const int bad : {1, 7, 16, 255, 256, 299}) {
      AttentionCase c{KvType::kF16, KvType::kF16, 16, 1, 3, 16, 24, 0.25F};
      Rng rng(kSeed);
      TestSequence s(c, 300, rng);
      SerialExecutor serial;
      const TestCache cache(c, 1, 300, kSeed);
      const std::vector<float> before = RunWhole(c, cache, s, serial);
      for (size_t i = 0; i < s.ldk; ++i) s.k[static_cast<size_t>(bad) * s.ldk + i] = NAN;
      for (size_t i = 0; i < s.ldv; ++i) s.v[static_cast<size_t>(bad) * s.ldv + i] = INFINITY;
      const std::vector<float> after = RunWhole(c, cache, s, serial);
      const size_t ldo = static_cast<size_t>(c.query_heads() * c.v_dim);
      const size_t seen = static_cast<size_t>(bad) * ldo;
      ASSERT_EQ(std::memcmp(before.data(), after.data(), seen * sizeof(float)), 0) << bad;
      for (size_t i = seen; i < after.size(); ++i) ASSERT_TRUE(std::isnan(after[i])) << i;
    }
  }
}

// Scores far apart: the folds' factors underflow to zero and nothing becomes NaN.
TEST(Attention, ExtremeScores) {
  AttentionCase c;
  c.k_type = KvType::kF32;
  Rng rng(kSeed);
  TestSequence s(c, 700, rng);
  for (float& q : s.q) q *= 300.0F;
  const TestCache cache(c, 1, 700, kSeed);
  SerialExecutor serial;
  const std::vector<float> out = RunWhole(c, cache, s, serial);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  for (const int row : {0, 255, 256, 511, 699}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectRowNear(c, cache, s, row, row % 6, out.data() + (row * 6 + row % 6) * c.v_dim));
  }
}

// After the largest call no memory is taken any more.
TEST(Attention, ScratchStays) {
  AttentionCase c;
  Rng rng(kSeed);
  const TestSequence s(c, 1200, rng);
  const TestCache cache(c, 1, 1200, kSeed);
  ShuffleExecutor executor(4, kSeed);
  AttentionScratch scratch;
  std::vector<float> out = OutputOf(c, 1200);
  RunChunk(c, cache, s, 0, 1199, out, scratch, executor);
  RunChunk(c, cache, s, 1199, 1, out, scratch, executor);
  ASSERT_GT(scratch.rep().units.front().groups, 1);  // the long decode is split over its spans
  const float* partials = scratch.rep().partials.data();
  const float* workers = scratch.rep().workers.data();
  const auto* units = scratch.rep().units.data();
  const auto* tasks = scratch.rep().tasks.data();
  for (const int n : {1, 200, 7, 1199}) RunChunk(c, cache, s, 1200 - n, n, out, scratch, executor);
  EXPECT_EQ(scratch.rep().partials.data(), partials);
  EXPECT_EQ(scratch.rep().workers.data(), workers);
  EXPECT_EQ(scratch.rep().units.data(), units);
  EXPECT_EQ(scratch.rep().tasks.data(), tasks);
}

TEST(AttentionDeath, BrokenContract) {
  AttentionCase c;
  const TestCache cache(c, 1, 16, kSeed);
  PagedKv kv = cache.kv();
  kv.block_tokens = 12;
  SerialExecutor serial;
  EXPECT_DEATH(WriteKv(kv, {}, nullptr, 0, nullptr, 0, serial), "block_tokens");
}

}  // namespace
}  // namespace kvasir
