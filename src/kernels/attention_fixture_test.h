// A paged cache of random content for the tests: blocks scattered in an arena, every byte that was
// not written is 0xFF (NaN in all formats), and a naive attention in double precision that reads
// the cache element by element.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "kernels/attention.h"
#include "kernels/attention_kernels.h"
#include "kernels/isa.h"
#include "kernels/kv_reader_test.h"
#include "quant/float16.h"
#include "quant/kv_codec.h"

namespace kvasir {

struct AttentionCase {
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  int block_tokens = 16;
  int kv_heads = 2;
  int group = 3;
  int k_dim = 64;
  int v_dim = 64;
  float scale = 0.125F;
  int query_heads() const { return kv_heads * group; }
  std::string Text() const {
    return std::string(KvTypeName(k_type)) + "/" + std::string(KvTypeName(v_type)) + " B" +
           std::to_string(block_tokens) + " heads " + std::to_string(kv_heads) + "*" +
           std::to_string(group) + " dims " + std::to_string(k_dim) + "/" + std::to_string(v_dim);
  }
};

inline std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

// Sets a path for one scope.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa) : before_(CurrentIsa()) { EXPECT_TRUE(SetIsa(isa).ok()); }
  ~ScopedIsa() { EXPECT_TRUE(SetIsa(before_).ok()); }
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  Isa before_;
};

// Real threads, or one thread that takes the parts in a shuffled order under random worker numbers.
class ShuffleExecutor final : public Executor {
 public:
  ShuffleExecutor(int workers, uint64_t seed) : workers_(workers), rng_(seed) {}
  int workers() const override { return workers_; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    std::vector<size_t> order(parts);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = parts; i > 1; --i) std::swap(order[i - 1], order[rng_.Below(i)]);
    for (const size_t part : order) {
      body(part, static_cast<int>(rng_.Below(static_cast<uint64_t>(workers_))));
    }
  }

 private:
  int workers_;
  Rng rng_;
};

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int workers) : workers_(workers) {}
  int workers() const override { return workers_; }
  void ParallelFor(size_t parts, FunctionRef<void(size_t part, int worker)> body) override {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(workers_));
    for (int w = 0; w < workers_; ++w) {
      threads.emplace_back([&, w] {
        for (size_t part; (part = next.fetch_add(1)) < parts;) body(part, w);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int workers_;
};

inline std::vector<float> RandomFloats(Rng& rng, size_t n) {
  std::vector<float> out(n);
  for (float& f : out) {  // about normal: sum of four uniforms
    const double u = rng.Uniform() + rng.Uniform() + rng.Uniform() + rng.Uniform() - 2.0;
    f = static_cast<float>(u * 1.7);
  }
  return out;
}

// The cache of `sequences` sequences of at most `tokens` tokens each.
class TestCache {
 public:
  TestCache(const AttentionCase& c, int sequences, int tokens, uint64_t seed) : case_(c) {
    Rng rng(seed);
    const size_t per_sequence = static_cast<size_t>((tokens + c.block_tokens - 1) / c.block_tokens);
    const size_t blocks = per_sequence * static_cast<size_t>(sequences) + 3;
    const auto heads = static_cast<size_t>(c.kv_heads);
    const size_t k_bytes = heads * KvKeyPlane(c.k_type, c.block_tokens, c.k_dim).head();
    const size_t v_bytes = heads * KvValuePlane(c.v_type, c.block_tokens, c.v_dim).head();
    kv_.k_offset = 64;  // another layer's bytes
    kv_.v_offset = kv_.k_offset + (k_bytes + 15) / 16 * 16;
    kv_.block_stride = (kv_.v_offset + v_bytes + 63) / 64 * 64;
    bytes_.assign(blocks * kv_.block_stride, std::byte{0xFF});
    kv_.base = bytes_.data();
    kv_.block_tokens = c.block_tokens;
    kv_.kv_heads = c.kv_heads;
    kv_.k_dim = c.k_dim;
    kv_.v_dim = c.v_dim;
    kv_.k_type = c.k_type;
    kv_.v_type = c.v_type;
    std::vector<int32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = blocks; i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
    for (int s = 0; s < sequences; ++s) {
      const auto first = order.begin() + static_cast<ptrdiff_t>(per_sequence) * s;
      tables_.emplace_back(first, first + static_cast<ptrdiff_t>(per_sequence));
    }
  }

  const PagedKv& kv() const { return kv_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  AttentionSpanOfSequence Rows(int sequence, int position, int tokens, int row) const {
    return {tables_[static_cast<size_t>(sequence)].data(), position, tokens, row};
  }
  // Elements as the cache holds them (i8 and i4: rotated).
  float Key(int sequence, int token, int head, int channel) const {
    return ReadKey(kv_, Block(sequence, token), token % case_.block_tokens, head, channel);
  }
  float Value(int sequence, int token, int head, int channel) const {
    return ReadValue(kv_, Block(sequence, token), token % case_.block_tokens, head, channel);
  }
  float ValueScale(int sequence, int token, int head, int channel) const {
    return ReadValueScale(kv_, Block(sequence, token), token % case_.block_tokens, head, channel);
  }
  // The bytes of the block that holds a token.
  const std::byte* Block(int sequence, int token) const {
    const int32_t number =
        tables_[static_cast<size_t>(sequence)][static_cast<size_t>(token / case_.block_tokens)];
    return bytes_.data() + static_cast<size_t>(number) * kv_.block_stride;
  }

 private:
  AttentionCase case_;
  PagedKv kv_;
  std::vector<std::byte> bytes_;
  std::vector<std::vector<int32_t>> tables_;
};

// Random q, k and v of one sequence.
struct TestSequence {
  std::vector<float> q, k, v;
  size_t ldq, ldk, ldv;
  int tokens;
  TestSequence(const AttentionCase& c, int n, Rng& rng)
      : ldq(static_cast<size_t>(c.query_heads() * c.k_dim)),
        ldk(static_cast<size_t>(c.kv_heads * c.k_dim)),
        ldv(static_cast<size_t>(c.kv_heads * c.v_dim)),
        tokens(n) {
    q = RandomFloats(rng, ldq * static_cast<size_t>(n));
    k = RandomFloats(rng, ldk * static_cast<size_t>(n));
    v = RandomFloats(rng, ldv * static_cast<size_t>(n));
  }
};

}  // namespace kvasir
