#include "kernels/attention_plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvasir {

namespace internal {
namespace {

constexpr size_t kStateFloats =
    24 * 1024;  // of a unit's rows (q, accumulator): stays in a core's own cache
constexpr int kTasksPerWorker = 4;                     // for balance
constexpr size_t kPartialFloatsMax = size_t{8} << 20;  // 32 MiB; past it units are no longer split
constexpr int kReadRows = 2;  // reading a span costs about as much as two rows' arithmetic on it

int SpansOf(int tokens) {
  return (tokens + kAttentionSpan - 1) / kAttentionSpan;
}

}  // namespace

float* FloatBuffer::Reserve(size_t n) {
  if (n > size_) {
    const size_t size = std::bit_ceil(n);
    data_.reset();
    data_.reset(static_cast<float*>(::operator new[](size * sizeof(float), std::align_val_t{64})));
    size_ = size;
  }
  return data_.get();
}

int AttentionShape::unit_rows() const {
  const size_t fit = kStateFloats / (row_floats() + query_floats);
  const int rows = static_cast<int>(std::min<size_t>(fit, kUnitRowsMax));
  return std::max(rows / max_rows, 1) * max_rows;
}

// The entries of the sequence's table that lie in `span`: none after its last token.
std::span<const int32_t> AttentionOrder::Blocks(const Entry& entry, int span) const {
  const AttentionSpanOfSequence& sequence = sequences_[static_cast<size_t>(entry.sequence)];
  const int per_span = kAttentionSpan / block_tokens_;
  const int blocks = (sequence.position + sequence.tokens + block_tokens_ - 1) / block_tokens_;
  const int first = std::min(span * per_span, blocks);
  return {sequence.block_table + first, static_cast<size_t>(std::min(blocks - first, per_span))};
}

// Entries [first, last) are the same before `span`. One pass while all go on alike; where they part
// they are sorted by that span, and every run that is still together goes on by itself.
void AttentionOrder::SortFrom(size_t first, size_t last, int span) {
  const auto full = static_cast<size_t>(kAttentionSpan / block_tokens_);
  auto alike = [&] {
    const std::span<const int32_t> one = Blocks(entries_[first], span);
    if (one.size() < full) return false;
    return std::all_of(entries_.begin() + static_cast<ptrdiff_t>(first) + 1,
                       entries_.begin() + static_cast<ptrdiff_t>(last), [&](const Entry& other) {
                         const std::span<const int32_t> two = Blocks(other, span);
                         return std::equal(one.begin(), one.end(), two.begin(), two.end());
                       });
  };
  while (alike()) ++span;
  const int shared = entries_[first].shared;  // belongs to the place, whoever comes to stand there
  std::sort(entries_.begin() + static_cast<ptrdiff_t>(first),
            entries_.begin() + static_cast<ptrdiff_t>(last), [&](const Entry& a, const Entry& b) {
              const std::span<const int32_t> one = Blocks(a, span);
              const std::span<const int32_t> two = Blocks(b, span);
              const auto at = std::mismatch(one.begin(), one.end(), two.begin(), two.end());
              if (at.second == two.end()) return at.first == one.end() && a.sequence < b.sequence;
              return at.first == one.end() || *at.first < *at.second;
            });
  entries_[first].shared = shared;
  size_t run = first;  // where the sequences with the same whole span begin
  for (size_t i = first + 1; i <= last; ++i) {
    const std::span<const int32_t> before = Blocks(entries_[i - 1], span);
    bool same_whole = false;
    if (i < last) {
      const std::span<const int32_t> blocks = Blocks(entries_[i], span);
      const bool begins_alike = !before.empty() && before.size() <= blocks.size() &&
                                std::equal(before.begin(), before.end(), blocks.begin());
      entries_[i].shared = begins_alike ? span + 1 : span;
      same_whole = begins_alike && before.size() == full;
    }
    if (same_whole) continue;
    if (i - run > 1 && before.size() == full) SortFrom(run, i, span + 1);
    run = i;
  }
}

void AttentionOrder::Sort(std::span<const AttentionSpanOfSequence> sequences, int block_tokens) {
  sequences_ = sequences;
  block_tokens_ = block_tokens;
  entries_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].tokens > 0) entries_.push_back({static_cast<int>(i), 0});
  }
  if (entries_.size() > 1) SortFrom(0, entries_.size(), 0);
}

}  // namespace internal

using internal::AttentionMember;
using internal::AttentionShape;
using internal::AttentionUnit;

// The members since unit.member become units, one for as many KV heads as leave a unit its size.
void AttentionScratch::Rep::CloseUnits(const AttentionShape& shape, AttentionUnit unit,
                                       bool merge_heads) {
  unit.members = static_cast<int>(members.size()) - unit.member;
  members[static_cast<size_t>(unit.member)].shared = 0;
  for (int i = 0; i < unit.members; ++i) {
    const AttentionMember& member = members[static_cast<size_t>(unit.member + i)];
    unit.head_rows += member.tokens * unit.heads;
    unit.spans = std::max(unit.spans, member.spans);
  }
  const int together = merge_heads ? std::max(shape.unit_rows() / unit.head_rows, 1) : 1;
  for (int kv_head = 0; kv_head < shape.kv_heads; kv_head += together) {
    unit.kv_head = kv_head;
    unit.kv_heads = std::min(together, shape.kv_heads - kv_head);
    units.push_back(unit);
  }
}

void AttentionScratch::Rep::AddUnits(const AttentionShape& shape,
                                     std::span<const AttentionSpanOfSequence> sequences,
                                     Entries sharers, bool merge_heads) {
  const int group = shape.query_heads / shape.kv_heads;
  const int rows = shape.unit_rows();
  for (int head = 0; head < group; head += rows) {
    AttentionUnit unit;
    unit.head = head;
    unit.heads = std::min(rows, group - head);
    const int capacity = rows / unit.heads;  // tokens
    unit.member = static_cast<int>(members.size());
    int left = capacity;
    for (const internal::AttentionOrder::Entry& entry : sharers) {
      const AttentionSpanOfSequence& sequence = sequences[static_cast<size_t>(entry.sequence)];
      for (int token = 0, n = 0; token < sequence.tokens; token += n) {
        n = std::min(left, sequence.tokens - token);
        AttentionMember& member = members.emplace_back();
        member.sequence = entry.sequence;
        member.token = token;
        member.tokens = n;
        member.spans = internal::SpansOf(sequence.position + token + n);
        member.shared = std::min(entry.shared, member.spans);
        left -= n;
        if (left > 0) continue;
        CloseUnits(shape, unit, merge_heads);
        unit.member = static_cast<int>(members.size());
        left = capacity;
      }
    }
    if (left < capacity) CloseUnits(shape, unit, merge_heads);
  }
}

// Of the unit's spans [0, spans).
int64_t AttentionScratch::Rep::Cost(const AttentionUnit& unit, int spans) const {
  int64_t cost = 0;
  for (int i = 0; i < unit.members; ++i) {
    const AttentionMember& member = members[static_cast<size_t>(unit.member + i)];
    const int64_t seen = std::min(member.spans, spans);
    cost += seen * member.tokens * unit.heads;
    cost += std::max<int64_t>(seen - member.shared, 0) * internal::kReadRows;
  }
  return cost * unit.kv_heads;
}

// Cuts units that are large beside a fair share into groups of spans.
void AttentionScratch::Rep::Split(const AttentionShape& shape) {
  int64_t total = 0;
  for (const AttentionUnit& unit : units) total += Cost(unit, unit.spans);
  const int64_t share = std::max<int64_t>(total / (shape.workers * internal::kTasksPerWorker), 1);
  size_t floats = 0;
  for (AttentionUnit& unit : units) {
    const int64_t cost = Cost(unit, unit.spans);
    const int64_t groups = std::min<int64_t>((cost + share - 1) / share, unit.spans);
    const size_t need =
        static_cast<size_t>(unit.spans) * static_cast<size_t>(unit.rows()) * shape.row_floats();
    if (shape.workers == 1 || groups <= 1 || floats + need > internal::kPartialFloatsMax) continue;
    unit.groups = static_cast<int>(groups);
    unit.partial = floats;
    floats += (need + 15) / 16 * 16;
  }
  // All of it at once: pages that are never used take no memory, and a deeper cache later takes
  // none either.
  if (shape.workers > 1) partials.Reserve(internal::kPartialFloatsMax);
}

// Spans are not alike (the shared ones are cheap beside a tail of each member): cut at equal cost.
void AttentionScratch::Rep::AddTasks(const AttentionUnit& unit, int index) {
  const int64_t cost = unit.groups > 1 ? Cost(unit, unit.spans) : 0;
  int begin = 0;
  for (int g = 1; g <= unit.groups; ++g) {
    int end = begin + 1;
    const int most = unit.spans - (unit.groups - g);  // the later tasks want a span each
    if (g == unit.groups) end = most;
    while (end < most && Cost(unit, end) * unit.groups < cost * g) ++end;
    tasks.push_back({index, begin, end});
    begin = end;
  }
}

void AttentionScratch::Rep::Plan(const AttentionShape& shape,
                                 std::span<const AttentionSpanOfSequence> sequences) {
  members.clear();
  units.clear();
  tasks.clear();
  span_reads.store(0, std::memory_order_relaxed);
  order.Sort(sequences, shape.block_tokens);
  const Entries entries = order.entries();
  // KV heads of a block lie next to each other, and memory is read faster in its own order: if
  // there is enough else to share out, a task takes several heads of a span, one after the other.
  int64_t spans = 0;
  for (const auto& entry : entries) {
    const AttentionSpanOfSequence& sequence = sequences[static_cast<size_t>(entry.sequence)];
    spans += std::max(internal::SpansOf(sequence.position + sequence.tokens) - entry.shared, 1);
  }
  const bool merge_heads = spans >= int64_t{2} * shape.workers * internal::kTasksPerWorker;
  for (size_t first = 0, last = 1; first < entries.size(); first = last++) {
    while (last < entries.size() && entries[last].shared > 0) ++last;
    AddUnits(shape, sequences, entries.subspan(first, last - first), merge_heads);
  }
  Split(shape);
  if (units.size() > pending_size) {
    pending_size = std::bit_ceil(units.size());
    pending = std::make_unique<std::atomic<int>[]>(pending_size);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    pending[i].store(units[i].groups, std::memory_order_relaxed);
    AddTasks(units[i], static_cast<int>(i));
  }
  const auto rows = static_cast<size_t>(shape.unit_rows());
  const auto block = static_cast<size_t>(shape.max_rows);
  worker_floats = rows * (shape.query_floats + shape.row_floats()) +
                  block * (shape.row_floats() + kAttentionSpan) + shape.widened_floats;
  worker_floats = (worker_floats + 3 * internal::kAttentionPad + 15) / 16 * 16;
  workers.Reserve(worker_floats * static_cast<size_t>(shape.workers));
}

AttentionScratch::AttentionScratch() : rep_(std::make_unique<Rep>()) {}
AttentionScratch::~AttentionScratch() = default;

}  // namespace kvasir
