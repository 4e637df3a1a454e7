// Attention over i8 and i4: against a model in double precision, the same bits on every path and
// for every cut, and nothing of a token where it does not belong.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_fixture_test.h"
#include "kernels/attention_int.h"
#include "kernels/rotated_test.h"
#include "quant/hadamard.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr int kDims[] = {1, 3, 8, 16, 20, 24, 31, 32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256};
struct KvPair {
  KvType k, v;
};
constexpr KvPair kPairs[] = {
    {KvType::kI8, KvType::kI8}, {KvType::kI8, KvType::kI4}, {KvType::kI4, KvType::kI4}};

template <typename T, size_t N>
T Pick(Rng& rng, const T (&from)[N]) {
  return from[rng.Below(N)];
}

AttentionCase RandomCase(Rng& rng) {
  AttentionCase c;
  const KvPair pair = Pick(rng, kPairs);
  c.k_type = pair.k;
  c.v_type = pair.v;
  c.block_tokens = 8 << rng.Below(6);
  c.kv_heads = 1 + static_cast<int>(rng.Below(3));
  c.group = 1 + static_cast<int>(rng.Below(rng.Below(4) == 0 ? 20 : 4));
  c.k_dim = Pick(rng, kDims);
  c.v_dim = rng.Below(2) == 0 ? c.k_dim : Pick(rng, kDims);
  c.scale = 1.0F / std::sqrt(static_cast<float>(c.k_dim));
  return c;
}

// A case, its constants and its cache.
struct Scene {
  AttentionCase c;
  PagedKv kv;
  std::vector<float> centre, balance;
};

void Condition(Scene& scene, Rng& rng) {
  const auto n = static_cast<size_t>(scene.c.kv_heads * scene.c.k_dim);
  scene.centre = RandomFloats(rng, n);
  scene.balance.resize(n);
  for (float& b : scene.balance) b = static_cast<float>(0.25 + 4 * rng.Uniform());
  scene.kv.k_centre = scene.centre;
  scene.kv.k_balance = scene.balance;
}

size_t OutWidth(const AttentionCase& c) {
  return static_cast<size_t>(c.query_heads() * c.v_dim);
}

std::vector<float> OutputOf(const AttentionCase& c, int rows) {
  return std::vector<float>(static_cast<size_t>(rows) * OutWidth(c), -123.0F);
}

void RunChunk(const AttentionCase& c, const PagedKv& kv, const AttentionSpanOfSequence& rows,
              const TestSequence& s, std::vector<float>& out, AttentionScratch& scratch,
              Executor& executor) {
  const AttentionSpanOfSequence list[] = {rows};
  WriteKv(kv, list, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
  PagedAttention(kv, list, c.query_heads(), c.scale, s.q.data(), s.ldq, out.data(), OutWidth(c),
                 scratch, executor);
}

std::vector<float> RunWhole(const AttentionCase& c, const TestCache& cache, const TestSequence& s,
                            Executor& executor) {
  AttentionScratch scratch;
  std::vector<float> out = OutputOf(c, s.tokens);
  RunChunk(c, cache.kv(), cache.Rows(0, 0, s.tokens, 0), s, out, scratch, executor);
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A row's query as it meets the cache: scaled, balanced, rotated.
std::vector<double> Query(const Scene& scene, const TestSequence& s, int row, int head) {
  const AttentionCase& c = scene.c;
  std::vector<double> q(static_cast<size_t>(c.k_dim));
  for (int i = 0; i < c.k_dim; ++i) {
    const auto at = static_cast<size_t>(i);
    q[at] = static_cast<double>(
                s.q[static_cast<size_t>(row) * s.ldq + static_cast<size_t>(head * c.k_dim + i)]) *
            c.scale;
    if (!scene.balance.empty()) {
      q[at] *= scene.balance[static_cast<size_t>(head / c.group * c.k_dim + i)];
    }
  }
  return Rotated(q);
}

// One row in double precision over K and V as the cache holds them, and how far the integers may be
// from it. With q' the rotated query, a = max |q'|, K the cache's rotated key, u = 2^-24:
//   - q' is rounded to steps of a / 32512, half a step a channel: a score is off by
//     a / 65024 * sum |K_c|, and by float rounding of q' (log2 + 4 operations), of the folds over
//     groups and of the scales: (log2(block) + groups + 8) u sum |q'_c K_c| at most, plus the
//     rotation's cancellation: (log2 + 3) u |q'|_1-like terms, taken as a * sum |K_c|.
//   - softmax as in attention_test.cc.
//   - a weight w = p s (s: V's scale) is rounded to steps of max w / 255 (127 for i4) over its 64
//     tokens: half a step a token, times |code|.
//   - un-rotating adds (log2 + 2) u of the sizes.
struct Model {
  std::vector<double> out, bound;
};

double Largest(const std::vector<double>& x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::fabs(value));
  return most;
}

Model RowModel(const Scene& scene, const TestCache& cache, const TestSequence& s, int row,
               int head) {
  constexpr double kU = 0x1.0p-24;
  const AttentionCase& c = scene.c;
  const int kv_head = head / c.group;
  const size_t tokens = static_cast<size_t>(row) + 1;
  const std::vector<double> q = Query(scene, s, row, head);
  const double amax = Largest(q);
  const double rounds = std::log2(HadamardBlock(c.k_dim)) + c.k_dim / 32.0 + 10;
  std::vector<double> score(tokens), weight(tokens);
  double score_error = 0;
  for (size_t t = 0; t < tokens; ++t) {
    double size = 0;
    for (int i = 0; i < c.k_dim; ++i) {
      const double k = cache.Key(0, static_cast<int>(t), kv_head, i);
      score[t] += q[static_cast<size_t>(i)] * k;
      size += std::fabs(k);
    }
    score_error = std::max(score_error, amax * size * (1 / 65024.0 + rounds * kU));
  }
  const double max = *std::max_element(score.begin(), score.end());
  const double range = max - *std::min_element(score.begin(), score.end());
  const double exp_error = 2e-7 + kU * range;
  const double relative =
      score_error + exp_error + (row / kAttentionSpan + 1) * (exp_error + 3 * kU) + 270 * kU;
  double sum = 0;
  for (size_t t = 0; t < tokens; ++t) sum += weight[t] = std::exp(score[t] - max);
  const double most = internal::WeightMost(c.v_type);
  std::vector<double> turned(static_cast<size_t>(c.v_dim));
  double bound = 0;  // of all channels: the rotation mixes them
  double square = 0;
  for (int i = 0; i < c.v_dim; ++i) {
    double error = 0;
    for (size_t start = 0; start < tokens; start += 64) {
      double largest = 0, codes = 0, size = 0;
      for (size_t t = start; t < std::min(start + 64, tokens); ++t) {
        const double v = cache.Value(0, static_cast<int>(t), kv_head, i);
        turned[static_cast<size_t>(i)] += weight[t] / sum * v;
        size += weight[t] / sum * std::fabs(v);
        const double scale = cache.ValueScale(0, static_cast<int>(t), kv_head, i);
        largest = std::max(largest, std::fabs(weight[t] / sum * scale));
        if (scale != 0) codes += std::fabs(v / scale);
      }
      // exp(score error) can raise the largest weight too.
      error += largest * (1 + 2 * relative) / (2 * most) * 1.0001 * codes + 2 * relative * size;
    }
    square += error * error;
    bound = std::max(bound, error);
  }
  const int block = HadamardBlock(c.v_dim);
  const double mixed = std::min(std::sqrt(square), bound * std::sqrt(static_cast<double>(block)));
  Model model;
  model.out = Rotated(turned);
  model.bound.assign(
      model.out.size(),
      mixed + (std::log2(block) + 4) * kU * Largest(turned) * std::sqrt(block) + 1e-30);
  return model;
}

void ExpectRowNear(const Scene& scene, const TestCache& cache, const TestSequence& s, int row,
                   int head, const std::vector<float>& out) {
  const Model model = RowModel(scene, cache, s, row, head);
  const float* got = out.data() + static_cast<size_t>(row) * OutWidth(scene.c) +
                     static_cast<size_t>(head * scene.c.v_dim);
  for (size_t i = 0; i < model.out.size(); ++i) {
    ASSERT_NEAR(got[i], model.out[i], model.bound[i])
        << scene.c.Text() << " row " << row << " head " << head << " channel " << i;
  }
}

TEST(IntAttention, NearDoublePrecision) {
  for (uint64_t seed = kSeed; seed < kSeed + 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Scene scene;
    scene.c = RandomCase(rng);
    const AttentionCase& c = scene.c;
    const int tokens = 1 + static_cast<int>(rng.Below(700));
    const TestSequence s(c, tokens, rng);
    const TestCache cache(c, 1, tokens, seed);
    scene.kv = cache.kv();
    if (rng.Below(2) == 0) Condition(scene, rng);
    SerialExecutor serial;
    AttentionScratch scratch;
    std::vector<float> out = OutputOf(c, tokens);
    RunChunk(c, scene.kv, cache.Rows(0, 0, tokens, 0), s, out, scratch, serial);
    for (int i = 0; i < 12; ++i) {
      const int row = i == 0 ? 0 : static_cast<int>(rng.Below(static_cast<uint64_t>(tokens)));
      const int head = static_cast<int>(rng.Below(static_cast<uint64_t>(c.query_heads())));
      ASSERT_NO_FATAL_FAILURE(ExpectRowNear(scene, cache, s, row, head, out));
    }
  }
}

// The values of a row after rotation and its format.
std::vector<float> Reference(KvType type, std::vector<float> x) {
  const auto dim = static_cast<int>(x.size());
  Rotate(x.data(), dim);
  for (int c = 0; c < dim; c += type == KvType::kI8 ? dim : kKvI4Group) {
    const int n = type == KvType::kI8 ? dim : std::min(kKvI4Group, dim - c);
    std::vector<int8_t> i8(static_cast<size_t>(n));
    std::vector<uint8_t> i4(static_cast<size_t>(n));
    float* at = x.data() + c;
    const float scale =
        F16ToF32(type == KvType::kI8 ? EncodeI8(at, n, i8.data()) : EncodeI4(at, n, i4.data()));
    for (int i = 0; i < n; ++i) {
      const auto j = static_cast<size_t>(i);
      at[i] = scale * static_cast<float>(type == KvType::kI8 ? i8[j] : kKvI4Table[i4[j]]);
    }
  }
  return x;
}

// What is written is what quant/kv_codec.h says of the conditioned, rotated row.
TEST(IntAttention, CacheHoldsTheReferenceCodes) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    for (uint64_t seed = kSeed; seed < kSeed + 30; ++seed) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " seed " + std::to_string(seed));
      Rng rng(seed);
      Scene scene;
      scene.c = RandomCase(rng);
      const AttentionCase& c = scene.c;
      const TestSequence s(c, 40, rng);
      const TestCache cache(c, 1, 40, seed);
      scene.kv = cache.kv();
      if (rng.Below(2) == 0) Condition(scene, rng);
      SerialExecutor serial;
      const AttentionSpanOfSequence rows[] = {cache.Rows(0, 0, 40, 0)};
      WriteKv(scene.kv, rows, s.k.data(), s.ldk, s.v.data(), s.ldv, serial);
      for (int t = 0; t < 40; ++t) {
        for (int h = 0; h < c.kv_heads; ++h) {
          std::vector<float> k(s.k.begin() + t * c.kv_heads * c.k_dim + h * c.k_dim,
                               s.k.begin() + t * c.kv_heads * c.k_dim + (h + 1) * c.k_dim);
          std::vector<float> v(s.v.begin() + t * c.kv_heads * c.v_dim + h * c.v_dim,
                               s.v.begin() + t * c.kv_heads * c.v_dim + (h + 1) * c.v_dim);
          for (size_t i = 0; i < k.size() && !scene.centre.empty(); ++i) {
            const size_t at = static_cast<size_t>(h * c.k_dim) + i;
            k[i] = (k[i] - scene.centre[at]) / scene.balance[at];
          }
          const std::vector<float> key = Reference(c.k_type, k);
          const std::vector<float> value = Reference(c.v_type, v);
          for (int i = 0; i < c.k_dim; ++i) {
            ASSERT_EQ(cache.Key(0, t, h, i), key[static_cast<size_t>(i)]) << c.Text();
          }
          for (int i = 0; i < c.v_dim; ++i) {
            ASSERT_EQ(cache.Value(0, t, h, i), value[static_cast<size_t>(i)]) << c.Text();
          }
        }
      }
    }
  }
}

TEST(IntAttention, PathsGiveTheSameBits) {
  for (uint64_t seed = kSeed; seed < kSeed + 90; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Scene scene;
    scene.c = RandomCase(rng);
    const AttentionCase& c = scene.c;
    const int tokens = 1 + static_cast<int>(rng.Below(400));
    const int n = std::min(tokens, 1 + static_cast<int>(rng.Below(12)));
    const TestSequence s(c, tokens, rng);
    if (rng.Below(2) == 0) Condition(scene, rng);
    std::vector<float> first;
    std::vector<std::byte> first_bytes;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scoped(isa);
      const TestCache cache(c, 1, tokens, seed);
      PagedKv kv = cache.kv();
      kv.k_centre = scene.centre;
      kv.k_balance = scene.balance;
      SerialExecutor serial;
      AttentionScratch scratch;
      std::vector<float> out = OutputOf(c, tokens);
      const AttentionSpanOfSequence past[] = {cache.Rows(0, 0, tokens - n, 0)};
      WriteKv(kv, past, s.k.data(), s.ldk, s.v.data(), s.ldv, serial);
      RunChunk(c, kv, cache.Rows(0, tokens - n, n, tokens - n), s, out, scratch, serial);
      if (first.empty()) {
        first = out;
        first_bytes = cache.bytes();
      }
      ASSERT_TRUE(first_bytes == cache.bytes()) << IsaName(isa) << " " << c.Text();
      ASSERT_TRUE(SameBits(first, out)) << IsaName(isa) << " " << c.Text() << " tokens " << tokens;
    }
  }
}

void ExpectPathsAgree(const AttentionCase& c, const TestSequence& s, int tokens) {
  std::vector<float> first;
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    const TestCache cache(c, 1, tokens, kSeed);
    SerialExecutor serial;
    const std::vector<float> out = RunWhole(c, cache, s, serial);
    if (first.empty()) first = out;
    EXPECT_TRUE(SameBits(first, out)) << IsaName(isa) << " " << c.Text();
  }
}

TEST(IntAttention, PathsAgreeOnEveryHeadSize) {
  for (int dim = 1; dim <= 576; dim += dim < 140 ? 1 : 37) {
    for (const KvPair pair : kPairs) {
      const AttentionCase c{pair.k, pair.v, 16, 1, 1 + dim % 13, dim, dim, 0.1F};
      Rng rng(static_cast<uint64_t>(dim));
      const TestSequence s(c, 21, rng);
      ExpectPathsAgree(c, s, 21);
    }
  }
}

// Rows that are one impulse have all codes at their largest after the rotation, so sums come as
// near to 2^31 as any can.
TEST(IntAttention, PathsAgreeOnTheLargestSums) {
  for (const int dim : {64, 128, 256, 512, 576, 1024}) {
    for (const KvPair pair : kPairs) {
      const AttentionCase c{pair.k, pair.v, 16, 1, 3, dim, dim, 0.001F};
      Rng rng(kSeed);
      TestSequence s(c, 70, rng);
      for (std::vector<float>* x : {&s.q, &s.k, &s.v}) {
        for (size_t i = 0; i < x->size(); ++i) {
          (*x)[i] = i % static_cast<size_t>(dim) != 0       ? 0.0F
                    : i / static_cast<size_t>(dim) % 2 == 0 ? 9.0F
                                                            : -9.0F;
        }
      }
      ExpectPathsAgree(c, s, 70);
    }
  }
}

TEST(IntAttention, BlockSizeDoesNotMatter) {
  for (const KvPair pair : kPairs) {
    Rng rng(kSeed);
    AttentionCase c;
    c.k_type = pair.k;
    c.v_type = pair.v;
    c.k_dim = 80;
    c.v_dim = 72;
    const TestSequence s(c, 600, rng);
    std::vector<float> first;
    for (const int block_tokens : {8, 16, 32, 64, 128, 256}) {
      c.block_tokens = block_tokens;
      const TestCache cache(c, 1, 600, kSeed);
      SerialExecutor serial;
      const std::vector<float> out = RunWhole(c, cache, s, serial);
      if (first.empty()) first = out;
      ASSERT_TRUE(SameBits(first, out)) << c.Text();
    }
  }
}

// Rows of several sequences in one call, cut in chunks at random, over threads: each row as if it
// were computed alone by one thread.
TEST(IntAttention, RowsStandAlone) {
  for (uint64_t seed = kSeed; seed < kSeed + 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = RandomCase(rng);
    constexpr int kSequences = 3;
    constexpr int kTokens = 560;
    const TestSequence s(c, kSequences * kTokens, rng);
    const TestCache cache(c, kSequences, kTokens, seed);
    ThreadExecutor executor(3);
    AttentionScratch scratch;
    std::vector<float> out = OutputOf(c, s.tokens);
    int done[kSequences] = {};
    while (done[0] < kTokens || done[1] < kTokens || done[2] < kTokens) {
      std::vector<AttentionSpanOfSequence> chunk;
      for (int i = 0; i < kSequences; ++i) {
        const int left = kTokens - done[i];
        int n = std::min(left, static_cast<int>(rng.Below(rng.Below(2) == 0 ? 3 : 300)));
        chunk.push_back(cache.Rows(i, done[i], n, i * kTokens + done[i]));
        done[i] += n;
      }
      WriteKv(cache.kv(), chunk, s.k.data(), s.ldk, s.v.data(), s.ldv, executor);
      PagedAttention(cache.kv(), chunk, c.query_heads(), c.scale, s.q.data(), s.ldq, out.data(),
                     OutWidth(c), scratch, executor);
    }
    for (int i = 0; i < kSequences; ++i) {
      const TestCache alone(c, 1, kTokens, seed + 7);
      SerialExecutor serial;
      const AttentionSpanOfSequence fill[] = {alone.Rows(0, 0, kTokens, i * kTokens)};
      WriteKv(alone.kv(), fill, s.k.data(), s.ldk, s.v.data(), s.ldv, serial);
      for (int j = 0; j < 12; ++j) {
        const int t = j == 0 ? kTokens - 1 : static_cast<int>(rng.Below(kTokens));
        std::vector<float> single = OutputOf(c, s.tokens);
        const AttentionSpanOfSequence last[] = {alone.Rows(0, t, 1, i * kTokens + t)};
        PagedAttention(alone.kv(), last, c.query_heads(), c.scale, s.q.data(), s.ldq, single.data(),
                       OutWidth(c), scratch, serial);
        const size_t at = static_cast<size_t>(i * kTokens + t) * OutWidth(c);
        ASSERT_EQ(std::memcmp(out.data() + at, single.data() + at, OutWidth(c) * sizeof(float)), 0)
            << c.Text() << " sequence " << i << " token " << t;
      }
    }
  }
}

// A token of the chunk that is not a number reaches the rows that see it, under its own KV head,
// and no other.
TEST(IntAttention, PoisonStaysWithItsTokenAndHead) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scoped(isa);
    for (const KvPair pair : kPairs) {
      for (const int bad : {0, 1, 7, 63, 64, 255, 256, 299}) {
        if (isa == Isa::kPortable && bad > 1 && bad < 256) continue;  // slow
        for (const bool in_key : {true, false}) {
          AttentionCase c{pair.k, pair.v, 16, 2, 3, 16, 24, 0.25F};
          Rng rng(kSeed);
          TestSequence s(c, 300, rng);
          SerialExecutor serial;
          const TestCache cache(c, 1, 300, kSeed);
          const std::vector<float> before = RunWhole(c, cache, s, serial);
          const float poison = bad % 2 == 0 ? NAN : INFINITY;
          if (in_key) {
            s.k[static_cast<size_t>(bad) * s.ldk + 5] = poison;
          } else {
            s.v[static_cast<size_t>(bad) * s.ldv + 5] = poison;
          }
          const std::vector<float> after = RunWhole(c, cache, s, serial);
          for (size_t i = 0; i < after.size(); ++i) {
            const int row = static_cast<int>(i / OutWidth(c));
            const bool head = i % OutWidth(c) < OutWidth(c) / 2;  // reads KV head 0
            if (row >= bad && head) {
              ASSERT_TRUE(std::isnan(after[i])) << IsaName(isa) << " " << c.Text() << " " << i;
            } else {
              ASSERT_EQ(std::memcmp(&after[i], &before[i], sizeof(float)), 0)
                  << IsaName(isa) << " " << c.Text() << " token " << bad << " row " << row;
            }
          }
        }
      }
    }
  }
}

// Zeros, denormals and huge numbers of either sign: finite, and equal on every path.
TEST(IntAttention, ExtremeNumbersStayFinite) {
  for (const KvPair pair : kPairs) {
    for (const float size : {0.0F, 1e-45F, 1e-38F, 1e-20F, 6e-8F, 1e6F, 1e12F, 1e25F}) {
      AttentionCase c{pair.k, pair.v, 16, 1, 2, 64, 64, 0.125F};
      Rng rng(kSeed);
      TestSequence s(c, 90, rng);
      for (size_t i = 0; i < s.k.size(); i += 3) s.k[i] *= size;
      for (size_t i = 0; i < s.v.size(); i += 5) s.v[i] *= size;
      for (size_t i = 64 * 40; i < 64 * 44; ++i) s.k[i] = s.v[i] = i % 2 == 0 ? size : -size;
      std::vector<float> first;
      for (const Isa isa : SupportedIsas()) {
        const ScopedIsa scoped(isa);
        const TestCache cache(c, 1, 90, kSeed);
        SerialExecutor serial;
        const std::vector<float> out = RunWhole(c, cache, s, serial);
        for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << size << " " << c.Text();
        if (first.empty()) first = out;
        ASSERT_TRUE(SameBits(first, out)) << IsaName(isa) << " " << size << " " << c.Text();
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
