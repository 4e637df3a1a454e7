// Sequences that share leading blocks: found as a naive comparison finds them, read once, and every
// row has the bits it has alone.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "kernels/attention_fixture_test.h"
#include "kernels/attention_plan.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20261130;

using internal::AttentionMember;
using internal::AttentionOrder;
using internal::AttentionUnit;

// Tables of a random forest: a new sequence takes some leading blocks of an earlier one (or none),
// then its own. `length` is in tokens; the new ones of this call are the last `tokens` of them.
struct Forest {
  struct Sequence {
    std::vector<int32_t> table;
    int length = 0;
    int tokens = 0;
  };
  std::vector<Sequence> sequences;
  int blocks = 0;

  Forest() = default;
  Forest(Rng& rng, int n, int block_tokens, int longest) {
    for (int i = 0; i < n; ++i) {
      Sequence s;
      s.length = 1 + static_cast<int>(rng.Below(static_cast<uint64_t>(longest)));
      if (i > 0 && rng.Below(8) != 0) {
        const Sequence& parent = sequences[rng.Below(sequences.size())];
        size_t shared = parent.table.size();
        if (rng.Below(3) != 0) shared = rng.Below(shared + 1);
        if (rng.Below(4) == 0) s.length = parent.length;
        s.table.assign(parent.table.begin(), parent.table.begin() + static_cast<ptrdiff_t>(shared));
        if (s.table.size() * static_cast<size_t>(block_tokens) > static_cast<size_t>(parent.length))
          s.table.pop_back();  // its last tokens were never written
      }
      const auto need = static_cast<size_t>((s.length + block_tokens - 1) / block_tokens);
      while (s.table.size() < need) s.table.push_back(blocks++);
      s.table.resize(need);
      const int kind = static_cast<int>(rng.Below(4));
      const uint64_t most = kind == 0 ? static_cast<uint64_t>(s.length) : kind == 1 ? 40 : 1;
      s.tokens = std::min(s.length, 1 + static_cast<int>(rng.Below(most)));
      sequences.push_back(s);
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.Below(i)]);
    for (Sequence& s : sequences) {
      for (int32_t& block : s.table) block = order[static_cast<size_t>(block)];
    }
  }
  std::vector<AttentionSpanOfSequence> Rows() const {
    std::vector<AttentionSpanOfSequence> rows;
    int row = 0;
    for (const Sequence& s : sequences) {
      rows.push_back({s.table.data(), s.length - s.tokens, s.tokens, row});
      row += s.tokens;
    }
    return rows;
  }
  int rows() const {
    int n = 0;
    for (const Sequence& s : sequences) n += s.tokens;
    return n;
  }
};

// Leading blocks of sequence i up to the end of span s.
std::vector<int32_t> Path(const Forest& forest, size_t i, int s, int block_tokens) {
  const std::vector<int32_t>& table = forest.sequences[i].table;
  const auto end = static_cast<size_t>((s + 1) * kAttentionSpan / block_tokens);
  return {table.begin(), table.begin() + static_cast<ptrdiff_t>(std::min(end, table.size()))};
}

int Spans(int tokens) {
  return (tokens + kAttentionSpan - 1) / kAttentionSpan;
}

bool Begins(const std::vector<int32_t>& whole, const std::vector<int32_t>& start) {
  return start.size() <= whole.size() && std::equal(start.begin(), start.end(), whole.begin());
}

// Spans that have to be read: different ones, without those that are the start of another.
size_t NaiveReads(const Forest& forest, int block_tokens) {
  std::set<std::pair<int, std::vector<int32_t>>> paths;
  for (size_t i = 0; i < forest.sequences.size(); ++i) {
    for (int s = 0; s < Spans(forest.sequences[i].length); ++s) {
      paths.insert({s, Path(forest, i, s, block_tokens)});
    }
  }
  size_t reads = 0;
  for (const auto& [span, path] : paths) {
    bool inside = false;
    for (const auto& [other_span, other] : paths) {
      inside |= other_span == span && other != path && Begins(other, path);
    }
    reads += inside ? 0 : 1;
  }
  return reads;
}

TEST(AttentionOrder, FindsWhatANaiveComparisonFinds) {
  for (uint64_t seed = kSeed; seed < kSeed + 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int block_tokens = 8 << rng.Below(6);
    const Forest forest(rng, 1 + static_cast<int>(rng.Below(14)), block_tokens,
                        1 + static_cast<int>(rng.Below(3000)));
    std::vector<AttentionSpanOfSequence> rows = forest.Rows();
    rows.insert(rows.begin(), {nullptr, 5, 0, 0});  // no tokens: not there
    AttentionOrder order;
    for (int twice = 0; twice < 2; ++twice) order.Sort(rows, block_tokens);
    ASSERT_EQ(order.entries().size(), forest.sequences.size());
    std::set<int> seen;
    size_t reads = 0;
    for (size_t i = 0; i < order.entries().size(); ++i) {
      const AttentionOrder::Entry& entry = order.entries()[i];
      const auto sequence = static_cast<size_t>(entry.sequence) - 1;
      ASSERT_TRUE(seen.insert(entry.sequence).second);
      const int spans = Spans(forest.sequences[sequence].length);
      reads += static_cast<size_t>(spans - entry.shared);
      if (i == 0) {
        ASSERT_EQ(entry.shared, 0);
        continue;
      }
      const auto before = static_cast<size_t>(order.entries()[i - 1].sequence) - 1;
      int shared = 0;
      while (shared < std::min(spans, Spans(forest.sequences[before].length)) &&
             Begins(Path(forest, sequence, shared, block_tokens),
                    Path(forest, before, shared, block_tokens))) {
        ++shared;
      }
      ASSERT_EQ(entry.shared, shared) << i;
    }
    ASSERT_EQ(reads, NaiveReads(forest, block_tokens));
  }
}

// Eight sequences share 2,000 tokens and two of them 3,000: seven whole spans once instead of eight
// times, and four more once instead of twice.
TEST(AttentionPlan, TreeIsReadOnce) {
  constexpr int kBlock = 16;
  std::vector<std::vector<int32_t>> tables(8);
  std::vector<AttentionSpanOfSequence> rows;
  int32_t next = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (i > 0)
      tables[i].assign(tables[0].begin(), tables[0].begin() + (i == 5 ? 3000 : 2000) / kBlock);
    while (tables[i].size() < 3100 / kBlock + 1) tables[i].push_back(next++);
    rows.push_back({tables[i].data(), 3099, 1, static_cast<int32_t>(i)});
  }
  AttentionScratch scratch;
  scratch.rep().Plan({9, 3, 64, 64, kBlock, 12, 2}, rows);
  std::vector<int> reads(3);
  for (const AttentionUnit& unit : scratch.rep().units) {
    for (int i = 0; i < unit.members; ++i) {
      const AttentionMember& member = scratch.rep().members[static_cast<size_t>(unit.member + i)];
      for (int h = unit.kv_head; h < unit.kv_head + unit.kv_heads; ++h)
        reads[static_cast<size_t>(h)] += member.spans - member.shared;
    }
  }
  const int expected =
      7 + (3000 / kAttentionSpan - 7) + 6 * (13 - 7) + 2 * (13 - 3000 / kAttentionSpan);
  for (const int n : reads) EXPECT_EQ(n, expected);
}

struct Written {
  AttentionCase c;
  Forest forest;
  std::vector<std::byte> bytes;
  PagedKv kv;
  std::vector<float> q;
  size_t ldq, ldo;

  // Every block holds the tokens that some sequence has there, all else is NaN.
  Written(const AttentionCase& shape, Forest trees, Rng& rng) : c(shape), forest(std::move(trees)) {
    TestCache layout(c, 1, c.block_tokens, 1);
    kv = layout.kv();
    bytes.assign(static_cast<size_t>(forest.blocks) * kv.block_stride, std::byte{0xFF});
    kv.base = bytes.data();
    SerialExecutor serial;
    const auto ldk = static_cast<size_t>(c.kv_heads * c.k_dim);
    const auto ldv = static_cast<size_t>(c.kv_heads * c.v_dim);
    std::vector<int> filled(static_cast<size_t>(forest.blocks));
    for (const Forest::Sequence& s : forest.sequences) {
      for (size_t b = 0; b < s.table.size(); ++b) {
        int& have = filled[static_cast<size_t>(s.table[b])];
        const int want = std::min(c.block_tokens, s.length - static_cast<int>(b) * c.block_tokens);
        if (want <= have) continue;
        const std::vector<float> k = RandomFloats(rng, ldk * static_cast<size_t>(want - have));
        const std::vector<float> v = RandomFloats(rng, ldv * static_cast<size_t>(want - have));
        const AttentionSpanOfSequence rows[] = {{&s.table[b], have, want - have, 0}};
        WriteKv(kv, rows, k.data(), ldk, v.data(), ldv, serial);
        have = want;
      }
    }
    ldq = static_cast<size_t>(c.query_heads() * c.k_dim);
    ldo = static_cast<size_t>(c.query_heads() * c.v_dim);
    q = RandomFloats(rng, ldq * static_cast<size_t>(forest.rows()));
  }
  std::vector<float> Attend(std::span<const AttentionSpanOfSequence> rows,
                            AttentionScratch& scratch, Executor& executor) const {
    std::vector<float> out(ldo * static_cast<size_t>(forest.rows()), -123.0F);
    PagedAttention(kv, rows, c.query_heads(), c.scale, q.data(), ldq, out.data(), ldo, scratch,
                   executor);
    return out;
  }
  std::vector<float> EachAlone() const {
    std::vector<float> out(ldo * static_cast<size_t>(forest.rows()));
    SerialExecutor serial;
    for (const AttentionSpanOfSequence& s : forest.Rows()) {
      AttentionScratch scratch;
      const std::vector<float> one = Attend({&s, 1}, scratch, serial);
      const size_t first = static_cast<size_t>(s.row) * ldo;
      std::memcpy(&out[first], &one[first], ldo * static_cast<size_t>(s.tokens) * sizeof(float));
    }
    return out;
  }
};

AttentionCase SmallCase(Rng& rng) {
  constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kBf16};
  constexpr int kDims[] = {3, 8, 20, 32};
  AttentionCase c;
  c.k_type = kTypes[rng.Below(3)];
  c.v_type = kTypes[rng.Below(3)];
  c.block_tokens = 8 << rng.Below(6);
  c.kv_heads = 1 + static_cast<int>(rng.Below(3));
  c.group = 1 + static_cast<int>(rng.Below(rng.Below(5) == 0 ? 110 : 4));
  c.k_dim = kDims[rng.Below(4)];
  c.v_dim = kDims[rng.Below(4)];
  return c;
}

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The same over i8 and i4, whose kernels have arithmetic of their own for blocks of many rows.
TEST(AttentionSharing, IntegersTooAndOnEveryPath) {
  constexpr KvType kPairs[][2] = {
      {KvType::kI8, KvType::kI8}, {KvType::kI8, KvType::kI4}, {KvType::kI4, KvType::kI4}};
  for (uint64_t seed = kSeed; seed < kSeed + 9; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    AttentionCase c = SmallCase(rng);
    c.group = std::min(c.group, 6);
    c.k_type = kPairs[seed % 3][0];
    c.v_type = kPairs[seed % 3][1];
    const Written cache(c, Forest(rng, 6, c.block_tokens, 500), rng);
    std::vector<float> first;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scoped(isa);
      if (first.empty()) first = cache.EachAlone();
      for (int threads : {1, 3}) {
        AttentionScratch scratch;
        ShuffleExecutor executor(threads, seed);
        const std::vector<float> out = cache.Attend(cache.forest.Rows(), scratch, executor);
        ASSERT_TRUE(Same(out, first)) << IsaName(isa) << " " << c.Text();
      }
    }
  }
}

TEST(AttentionSharing, EveryRowHasTheBitsItHasAlone) {
  for (uint64_t seed = kSeed; seed < kSeed + 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const AttentionCase c = SmallCase(rng);
    Forest forest(rng, 2 + static_cast<int>(rng.Below(11)), c.block_tokens,
                  c.group > 8 ? 300 : 1 + static_cast<int>(rng.Below(1500)));
    const Written cache(c, std::move(forest), rng);
    std::vector<AttentionSpanOfSequence> rows = cache.forest.Rows();
    for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[rng.Below(i)]);
    const std::vector<float> alone = cache.EachAlone();
    AttentionScratch scratch;
    for (int threads = 1; threads <= 4; ++threads) {
      ThreadExecutor executor(threads);
      ASSERT_TRUE(Same(cache.Attend(rows, scratch, executor), alone)) << c.Text() << threads;
    }
    ShuffleExecutor many(23, seed);  // cut into as many tasks as can be
    ASSERT_TRUE(Same(cache.Attend(rows, scratch, many), alone)) << c.Text();
  }
}

TEST(AttentionSharing, PathsGiveTheSameBits) {
  for (uint64_t seed = kSeed; seed < kSeed + 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    AttentionCase c = SmallCase(rng);
    c.group = std::min(c.group, 4);
    const Written cache(c, Forest(rng, 6, c.block_tokens, 700), rng);
    std::vector<float> first;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scoped(isa);
      AttentionScratch scratch;
      ShuffleExecutor executor(2, seed);
      const std::vector<float> out = cache.Attend(cache.forest.Rows(), scratch, executor);
      if (first.empty()) first = cache.EachAlone();
      ASSERT_TRUE(Same(out, first)) << IsaName(isa) << " " << c.Text();
    }
  }
}

// Not only planned so: eight sharers of 2,000 tokens go through what they have in common once.
TEST(AttentionSharing, WhatIsSharedIsGoneThroughOnce) {
  for (const KvType type : {KvType::kF16, KvType::kI8}) {
    AttentionCase c;
    c.k_type = c.v_type = type;
    c.k_dim = c.v_dim = 8;
    Rng rng(kSeed);
    Forest forest;
    for (int i = 0; i < 8; ++i) {
      Forest::Sequence s;
      s.length = 3100;
      s.tokens = 1;
      const int shared = i == 0 ? 0 : 2000 / c.block_tokens;
      if (i > 0) {
        s.table.assign(forest.sequences[0].table.begin(),
                       forest.sequences[0].table.begin() + shared);
      }
      while (s.table.size() < static_cast<size_t>(3100 / c.block_tokens + 1)) {
        s.table.push_back(forest.blocks++);
      }
      forest.sequences.push_back(std::move(s));
    }
    const Written cache(c, std::move(forest), rng);
    for (const int threads : {1, 2, 5}) {
      AttentionScratch scratch;
      ShuffleExecutor executor(threads, kSeed);
      cache.Attend(cache.forest.Rows(), scratch, executor);
      const auto reads = static_cast<size_t>(scratch.rep().span_reads.load());
      EXPECT_EQ(reads, static_cast<size_t>(c.kv_heads) * NaiveReads(cache.forest, c.block_tokens))
          << threads;
    }
  }
}

// A step of sharers takes no memory once the largest has been seen.
TEST(AttentionSharing, ScratchStays) {
  Rng rng(kSeed);
  AttentionCase c;
  const Written cache(c, Forest(rng, 12, c.block_tokens, 900), rng);
  const std::vector<AttentionSpanOfSequence> rows = cache.forest.Rows();
  AttentionScratch scratch;
  ShuffleExecutor executor(4, kSeed);
  const std::vector<float> out = cache.Attend(rows, scratch, executor);
  AttentionScratch::Rep& rep = scratch.rep();
  const auto state = [&rep] {
    return std::vector<const void*>{
        rep.order.entries().data(), rep.members.data(),  rep.units.data(),  rep.tasks.data(),
        rep.pending.get(),          rep.partials.data(), rep.workers.data()};
  };
  const std::vector<const void*> before = state();
  for (size_t n = rows.size(); n > 0; n -= 3) {
    cache.Attend(std::span(rows).first(n), scratch, executor);
    ASSERT_EQ(state(), before) << n;
  }
  ASSERT_TRUE(Same(cache.Attend(rows, scratch, executor), out));
}

}  // namespace
}  // namespace kvasir
