// Attention with a tail: against a model in double precision, and the same bits on every path, for
// every cut of the work and whatever lies in bytes that no row may read.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_fixture_test.h"
#include "kernels/rotated_test.h"
#include "quant/hadamard.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr int kTail = 32;

// i4 in blocks of any size, the tail in i8 in blocks of 32, keys conditioned.
struct TailScene {
  AttentionCase c, tail_case;
  std::vector<float> centre, balance;
  std::vector<TestSequence> sequences;

  explicit TailScene(Rng& rng, int count, int longest) {
    constexpr int kDims[] = {8, 24, 64, 80, 128};
    c.k_type = c.v_type = KvType::kI4;
    c.block_tokens = 8 << rng.Below(6);
    c.kv_heads = 1 + static_cast<int>(rng.Below(3));
    c.group = 1 + static_cast<int>(rng.Below(5));
    c.k_dim = kDims[rng.Below(5)];
    c.v_dim = rng.Below(3) == 0 ? kDims[rng.Below(5)] : c.k_dim;
    c.scale = 1.0F / std::sqrt(static_cast<float>(c.k_dim));
    tail_case = c;
    tail_case.k_type = tail_case.v_type = KvType::kI8;
    tail_case.block_tokens = kTail;
    const auto channels = static_cast<size_t>(c.kv_heads * c.k_dim);
    centre = RandomFloats(rng, channels);
    for (size_t i = 0; i < channels; ++i)
      balance.push_back(static_cast<float>(0.5 + rng.Uniform()));
    for (int i = 0; i < count; ++i) {
      sequences.emplace_back(c, 1 + static_cast<int>(rng.Below(static_cast<uint64_t>(longest))),
                             rng);
    }
  }
  PagedKv Conditioned(PagedKv kv) const {
    kv.k_centre = centre;
    kv.k_balance = balance;
    return kv;
  }
  size_t out_width() const { return static_cast<size_t>(c.query_heads() * c.v_dim); }
};

// Rows of a call: tokens [position, position + tokens) of sequence `sequence`.
struct Part {
  int sequence = 0;
  int position = 0;
  int tokens = 0;
};

// The caches of a scene and what ran over them.
class TailRun {
 public:
  TailRun(const TailScene& scene, uint64_t seed)
      : scene_(scene),
        cache_(scene.c, static_cast<int>(scene.sequences.size()), Longest(scene), seed),
        tail_(scene.tail_case, static_cast<int>(scene.sequences.size()), Longest(scene), seed + 1) {
    for (const TestSequence& s : scene.sequences) {
      out_.emplace_back(static_cast<size_t>(s.tokens) * scene.out_width(), -123.0F);
    }
  }

  void Run(const std::vector<Part>& parts, Executor& executor) {
    const TestSequence& any = scene_.sequences[0];
    std::vector<float> q, k, v;
    std::vector<AttentionSpanOfSequence> spans, chunks;
    int rows = 0;
    for (const Part& part : parts) {
      const TestSequence& s = scene_.sequences[static_cast<size_t>(part.sequence)];
      const auto from = static_cast<ptrdiff_t>(part.position);
      const auto to = from + part.tokens;
      const auto take = [&](std::vector<float>& all, const std::vector<float>& own, size_t ld) {
        const auto width = static_cast<ptrdiff_t>(ld);
        all.insert(all.end(), own.begin() + from * width, own.begin() + to * width);
      };
      take(q, s.q, s.ldq);
      take(k, s.k, s.ldk);
      take(v, s.v, s.ldv);
      spans.push_back(cache_.Rows(part.sequence, part.position, part.tokens, rows));
      for (int p = part.position; p < part.position + part.tokens;) {
        const int chunk = p / kTail;
        const int end = std::min(part.position + part.tokens, (chunk + 1) * kTail);
        AttentionSpanOfSequence rows_of_chunk =
            tail_.Rows(part.sequence, p - chunk * kTail, end - p, rows + p - part.position);
        rows_of_chunk.block_table += chunk;
        chunks.push_back(rows_of_chunk);
        p = end;
      }
      rows += part.tokens;
    }
    const PagedKv kv = scene_.Conditioned(cache_.kv());
    const PagedKv tail = scene_.Conditioned(tail_.kv());
    WriteKv(kv, spans, k.data(), any.ldk, v.data(), any.ldv, executor);
    WriteKv(tail, chunks, k.data(), any.ldk, v.data(), any.ldv, executor);
    std::vector<float> out(static_cast<size_t>(rows) * scene_.out_width(), -123.0F);
    PagedAttention(kv, spans, {&tail, chunks}, scene_.c.query_heads(), scene_.c.scale, q.data(),
                   any.ldq, out.data(), scene_.out_width(), scratch_, executor);
    size_t at = 0;
    for (const Part& part : parts) {
      const size_t n = static_cast<size_t>(part.tokens) * scene_.out_width();
      std::memcpy(out_[static_cast<size_t>(part.sequence)].data() +
                      static_cast<size_t>(part.position) * scene_.out_width(),
                  out.data() + at, n * sizeof(float));
      at += n;
    }
  }
  // Every sequence by itself, its whole text in one call.
  void RunWhole(Executor& executor) {
    for (size_t s = 0; s < scene_.sequences.size(); ++s) {
      Run({{static_cast<int>(s), 0, scene_.sequences[s].tokens}}, executor);
    }
  }

  const std::vector<std::vector<float>>& out() const { return out_; }
  const TestCache& Holder(int p, int t) const { return t < p / kTail * kTail ? cache_ : tail_; }

 private:
  static int Longest(const TailScene& scene) {
    int longest = 0;
    for (const TestSequence& s : scene.sequences) longest = std::max(longest, s.tokens);
    return longest;
  }
  const TailScene& scene_;
  TestCache cache_, tail_;
  AttentionScratch scratch_;
  std::vector<std::vector<float>> out_;
};

// A row by the rule of the tail, in double precision over the elements as the two caches hold them.
// What the integers may be off by:
//   - q in steps of a / 32512 (a: its largest magnitude): a score by d = a / 65024 sum |K_c|, so a
//     weight by a factor of e^2d at most; twice that for float rounding.
//   - weights w = p * V's scale in steps of their largest / L among 64 tokens, L = 127 for i4 (255
//     for i8: less): half a step a token, times |code|.
//   - float rounding of sums and folds: 1e-4 of the sizes summed.
// Bounds are in rotated channels; turned back, a channel is off by at most the sum of its block's
// divided by the root of its size.
void ExpectRow(const TailScene& scene, const TailRun& run, int sequence, int p, int head) {
  const AttentionCase& c = scene.c;
  const TestSequence& s = scene.sequences[static_cast<size_t>(sequence)];
  const int kv_head = head / c.group;
  std::vector<double> q(static_cast<size_t>(c.k_dim));
  for (int i = 0; i < c.k_dim; ++i) {
    const auto at = static_cast<size_t>(i);
    q[at] = static_cast<double>(
                s.q[static_cast<size_t>(p) * s.ldq + static_cast<size_t>(head * c.k_dim + i)]) *
            c.scale * scene.balance[static_cast<size_t>(kv_head * c.k_dim + i)];
  }
  q = Rotated(q);
  double largest = 0;
  for (const double x : q) largest = std::max(largest, std::fabs(x));
  std::vector<double> score(static_cast<size_t>(p) + 1);
  double most = -1e300, off = 0;
  for (int t = 0; t <= p; ++t) {
    double sum = 0, size = 0;
    for (int i = 0; i < c.k_dim; ++i) {
      const double key = run.Holder(p, t).Key(sequence, t, kv_head, i);
      sum += q[static_cast<size_t>(i)] * key;
      size += std::fabs(key);
    }
    score[static_cast<size_t>(t)] = sum;
    most = std::max(most, sum);
    off = std::max(off, largest / 65024 * size);
  }
  double total = 0;
  for (double& x : score) total += x = std::exp(x - most);
  std::vector<double> want(static_cast<size_t>(c.v_dim)), bound(static_cast<size_t>(c.v_dim));
  for (int i = 0; i < c.v_dim; ++i) {
    const auto at = static_cast<size_t>(i);
    double sizes = 0;
    for (int first = 0; first <= p;) {
      // 64 tokens of one holder share a step.
      const int edge = p / kTail * kTail;
      const int end = std::min({first / 64 * 64 + 64, first < edge ? edge : p + 1, p + 1});
      double step = 0, codes = 0;
      for (int t = first; t < end; ++t) {
        const TestCache& holder = run.Holder(p, t);
        const double value = holder.Value(sequence, t, kv_head, i);
        const double scale = std::fabs(holder.ValueScale(sequence, t, kv_head, i));
        want[at] += score[static_cast<size_t>(t)] * value / total;
        sizes += score[static_cast<size_t>(t)] * std::fabs(value) / total;
        step = std::max(step, score[static_cast<size_t>(t)] * scale / total);
        codes += scale > 0 ? std::fabs(value) / scale : 0;
      }
      bound[at] += step / (2 * 127) * codes;
      first = end;
    }
    bound[at] += (4 * off + 1e-4) * sizes;
  }
  want = Rotated(want);
  const int block = HadamardBlock(c.v_dim);
  const float* got = run.out()[static_cast<size_t>(sequence)].data() +
                     static_cast<size_t>(p) * scene.out_width() +
                     static_cast<size_t>(head * c.v_dim);
  for (int i = 0; i < c.v_dim; ++i) {
    double may = 1e-6;
    for (int j = i / block * block; j < i / block * block + block; ++j) {
      may += bound[static_cast<size_t>(j)] / std::sqrt(static_cast<double>(block));
    }
    ASSERT_NEAR(got[i], want[static_cast<size_t>(i)], may)
        << c.Text() << ", position " << p << ", head " << head << ", channel " << i;
  }
}

TEST(AttentionTail, IsTheRuleInDoublePrecision) {
  for (uint64_t seed = kSeed; seed < kSeed + 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const TailScene scene(rng, 1, 420);
    TailRun run(scene, seed);
    ThreadExecutor executor(2);
    run.RunWhole(executor);
    const int n = scene.sequences[0].tokens;
    for (const int p : {0, 1, 31, 32, 33, 63, 64, 255, 256, 257, 287, 288, n - 1}) {
      if (p >= n) continue;
      ExpectRow(scene, run, 0, p,
                static_cast<int>(rng.Below(static_cast<uint64_t>(scene.c.query_heads()))));
      if (HasFatalFailure()) return;
    }
  }
}

// All sequences in chunks of random sizes, decodes among prefills, in random company.
std::vector<std::vector<Part>> RandomCalls(const TailScene& scene, Rng& rng) {
  std::vector<int> done(scene.sequences.size(), 0);
  std::vector<std::vector<Part>> calls;
  for (;;) {
    std::vector<Part> call;
    bool left = false;
    for (size_t s = 0; s < done.size(); ++s) {
      const int rest = scene.sequences[s].tokens - done[s];
      if (rest == 0) continue;
      left = true;
      if (rng.Below(4) == 0) continue;
      const uint64_t most = rng.Below(3) == 0 ? 1 : rng.Below(2) == 0 ? 7 : 150;
      const int n = std::min(rest, 1 + static_cast<int>(rng.Below(most)));
      call.push_back({static_cast<int>(s), done[s], n});
      done[s] += n;
    }
    if (!left) return calls;
    if (!call.empty()) calls.push_back(std::move(call));
  }
}

TEST(AttentionTail, HasTheSameBitsForEveryCutThreadAndPath) {
  for (uint64_t seed = kSeed; seed < kSeed + 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const bool deep = seed == kSeed;  // more than two spans
    const TailScene scene(rng, deep ? 1 : 1 + static_cast<int>(rng.Below(4)), deep ? 700 : 150);
    TailRun alone(scene, seed);
    {
      const ScopedIsa portable(Isa::kPortable);
      SerialExecutor serial;
      alone.RunWhole(serial);
    }
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa path(isa);
      TailRun run(scene, seed + 77);
      ShuffleExecutor shuffled(3, seed);
      ThreadExecutor threads(2);
      bool turn = false;
      for (const std::vector<Part>& call : RandomCalls(scene, rng)) {
        run.Run(call, (turn = !turn) ? static_cast<Executor&>(shuffled) : threads);
      }
      for (size_t s = 0; s < scene.sequences.size(); ++s) {
        ASSERT_EQ(std::memcmp(run.out()[s].data(), alone.out()[s].data(),
                              alone.out()[s].size() * sizeof(float)),
                  0)
            << scene.c.Text() << " on " << IsaName(isa) << ", sequence " << s;
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
