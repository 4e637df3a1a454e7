#include "kernels/attention_plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kvasir {

namespace internal {
namespace {

constexpr size_t kStateFloats =
    24 * 1024;                    // of a unit's rows (q, accumulator): stays in a core's own cache
constexpr int kUnitRowsMax = 96;  // more would not save reads worth having
constexpr int kTasksPerWorker = 4;                     // for balance
constexpr size_t kPartialFloatsMax = size_t{8} << 20;  // 32 MiB; past it units are no longer split

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
  const size_t fit = kStateFloats / (row_floats() + static_cast<size_t>(k_dim));
  const int rows = static_cast<int>(std::min<size_t>(fit, kUnitRowsMax));
  return std::max(rows / max_rows, 1) * max_rows;
}

}  // namespace internal

using internal::AttentionShape;
using internal::AttentionTask;
using internal::AttentionUnit;

void AttentionScratch::Rep::AddUnits(const AttentionShape& shape,
                                     const AttentionSpanOfSequence& sequence, int index) {
  const int group = shape.query_heads / shape.kv_heads;
  const int rows = shape.unit_rows();
  const int heads = std::min(group, rows);
  const int tokens = std::max(rows / heads, 1);
  for (int token = 0; token < sequence.tokens; token += tokens) {
    const int n = std::min(tokens, sequence.tokens - token);
    const int seen = sequence.position + token + n;
    for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      for (int head = 0; head < group; head += heads) {
        AttentionUnit& unit = units.emplace_back();
        unit.sequence = index;
        unit.kv_head = kv_head;
        unit.head = head;
        unit.heads = std::min(heads, group - head);
        unit.token = token;
        unit.tokens = n;
        unit.spans = (seen + kAttentionSpan - 1) / kAttentionSpan;
      }
    }
  }
}

// Cuts units that are large beside a fair share into groups of spans.
void AttentionScratch::Rep::Split(const AttentionShape& shape) {
  // Reading a span costs about as much as two rows' arithmetic on it.
  auto cost = [](const AttentionUnit& unit) {
    return static_cast<int64_t>(unit.spans) * (unit.rows() + 2);
  };
  int64_t total = 0;
  for (const AttentionUnit& unit : units) total += cost(unit);
  const int64_t share = std::max<int64_t>(total / (shape.workers * internal::kTasksPerWorker), 1);
  size_t floats = 0;
  for (AttentionUnit& unit : units) {
    const int64_t groups = std::min<int64_t>((cost(unit) + share - 1) / share, unit.spans);
    const size_t need =
        static_cast<size_t>(unit.spans) * static_cast<size_t>(unit.rows()) * shape.row_floats();
    if (shape.workers == 1 || groups <= 1 || floats + need > internal::kPartialFloatsMax) continue;
    unit.groups = static_cast<int>(groups);
    unit.partial = floats;
    floats += (need + 15) / 16 * 16;
  }
  // All of it at once: pages that are never used take no memory, and a deeper cache later takes
  // none either.
  if (floats > 0) partials.Reserve(internal::kPartialFloatsMax);
}

void AttentionScratch::Rep::Plan(const AttentionShape& shape,
                                 std::span<const AttentionSpanOfSequence> sequences) {
  units.clear();
  tasks.clear();
  for (size_t i = 0; i < sequences.size(); ++i) AddUnits(shape, sequences[i], static_cast<int>(i));
  Split(shape);
  if (units.size() > pending_size) {
    pending_size = std::bit_ceil(units.size());
    pending = std::make_unique<std::atomic<int>[]>(pending_size);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    const AttentionUnit& unit = units[i];
    pending[i].store(unit.groups, std::memory_order_relaxed);
    for (int g = 0; g < unit.groups; ++g) {
      AttentionTask& task = tasks.emplace_back();
      task.unit = static_cast<int>(i);
      task.span_begin = static_cast<int>(static_cast<int64_t>(unit.spans) * g / unit.groups);
      task.span_end = static_cast<int>(static_cast<int64_t>(unit.spans) * (g + 1) / unit.groups);
    }
  }
  const auto rows = static_cast<size_t>(shape.unit_rows());
  const auto block = static_cast<size_t>(shape.max_rows);
  worker_floats = rows * (static_cast<size_t>(shape.k_dim) + shape.row_floats()) +
                  block * (shape.row_floats() + kAttentionSpan);
  worker_floats = (worker_floats + 3 * internal::kAttentionPad + 15) / 16 * 16;
  workers.Reserve(worker_floats * static_cast<size_t>(shape.workers));
}

AttentionScratch::AttentionScratch() : rep_(std::make_unique<Rep>()) {}
AttentionScratch::~AttentionScratch() = default;

}  // namespace kvasir
