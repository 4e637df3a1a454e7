#include "calibrate/sequence_runner.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "calibrate/paged_views.h"

namespace kvasir {

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::Make(const Model& model,
                                                             ForwardOptions options,
                                                             const KvLayout& layout, int sequences,
                                                             Executor& executor) {
  KVASIR_CHECK(sequences > 0 && layout.layers().size() == model.layers.size());
  std::unique_ptr<SequenceRunner> runner(new SequenceRunner());
  runner->vocab_ = static_cast<size_t>(model.config().vocab);
  runner->max_rows_ = options.max_rows;
  runner->max_positions_ = options.max_positions;
  runner->keys_ = options.keys;
  KVASIR_ASSIGN_OR_RETURN(runner->pass_, ForwardPass::Make(model, std::move(options), executor));
  const int block = layout.block_tokens();
  const int each = (runner->max_positions_ + block - 1) / block;
  const size_t bytes =
      layout.block_bytes() * static_cast<size_t>(each) * static_cast<size_t>(sequences);
  runner->memory_ = BigBuffer::Allocate(bytes);
  if (!runner->memory_) {
    return OutOfMemory("a cache for " + std::to_string(sequences) + " sequences of " +
                       std::to_string(runner->max_positions_) + " tokens needs " +
                       FormatSize(bytes));
  }
  std::memset(runner->memory_.data(), 0xFF, bytes);  // NaN in f32, f16 and bf16
  runner->layers_ = PagedViews(layout, runner->memory_.data(), runner->keys_);
  if (KvTail::Wanted(runner->layers_)) {
    KVASIR_ASSIGN_OR_RETURN(runner->tail_,
                            KvTail::Make(runner->layers_, sequences, runner->max_rows_));
    runner->history_.resize(static_cast<size_t>(sequences));
  }
  runner->tables_.resize(static_cast<size_t>(sequences));
  for (int s = 0; s < sequences; ++s) {
    for (int i = 0; i < each; ++i) {
      runner->tables_[static_cast<size_t>(s)].push_back((each - 1 - i) * sequences + s);
    }
  }
  runner->lengths_.assign(static_cast<size_t>(sequences), 0);
  return runner;
}

Status SequenceRunner::Prefill(int sequence, std::span<const int32_t> tokens,
                               std::span<const int32_t> want, Sink sink) {
  KVASIR_CHECK(sequence >= 0 && sequence < sequences());
  int32_t& length = lengths_[static_cast<size_t>(sequence)];
  KVASIR_CHECK(static_cast<size_t>(length) + tokens.size() <= static_cast<size_t>(max_positions_));
  KVASIR_RETURN_IF_ERROR(HoldTail(sequence));
  size_t next = 0;
  const auto chunk = static_cast<size_t>(max_rows_);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t count = std::min(chunk, tokens.size() - begin);
    positions_.resize(count);
    for (size_t i = 0; i < count; ++i) positions_[i] = length + static_cast<int32_t>(i);
    rows_.clear();
    const size_t first = next;
    for (; next < want.size() && static_cast<size_t>(want[next]) < begin + count; ++next) {
      rows_.push_back(want[next] - static_cast<int32_t>(begin));
    }
    const AttentionSpanOfSequence span{tables_[static_cast<size_t>(sequence)].data(), length,
                                       static_cast<int32_t>(count), 0};
    slots_.assign(1, sequence);
    KVASIR_RETURN_IF_ERROR(Run(tokens.subspan(begin, count), {&span, 1}, first, sink));
    length += static_cast<int32_t>(count);
    if (tail_ != nullptr) {
      std::vector<int32_t>& history = history_[static_cast<size_t>(sequence)];
      history.insert(history.end(), tokens.begin() + static_cast<int64_t>(begin),
                     tokens.begin() + static_cast<int64_t>(begin + count));
    }
  }
  return Status::Ok();
}

Status SequenceRunner::Decode(std::span<const int32_t> tokens, Sink sink) {
  KVASIR_CHECK(tokens.size() <= lengths_.size());
  KVASIR_CHECK(tokens.size() <= static_cast<size_t>(max_rows_));
  for (size_t s = 0; s < tokens.size(); ++s) {
    KVASIR_RETURN_IF_ERROR(HoldTail(static_cast<int>(s)));
  }
  positions_.clear();
  rows_.clear();
  spans_.clear();
  slots_.clear();
  for (size_t s = 0; s < tokens.size(); ++s) {
    KVASIR_CHECK(lengths_[s] < max_positions_);
    const auto row = static_cast<int32_t>(s);
    positions_.push_back(lengths_[s]);
    rows_.push_back(row);
    spans_.push_back({tables_[s].data(), lengths_[s], 1, row});
    slots_.push_back(row);
  }
  KVASIR_RETURN_IF_ERROR(Run(tokens, spans_, 0, sink));
  for (size_t s = 0; s < tokens.size(); ++s) {
    ++lengths_[s];
    if (tail_ != nullptr) history_[s].push_back(tokens[s]);
  }
  return Status::Ok();
}

void SequenceRunner::Truncate(int sequence, int32_t length) {
  int32_t& now = lengths_[static_cast<size_t>(sequence)];
  KVASIR_CHECK(length >= 0 && length <= now);
  now = length;
  if (tail_ != nullptr) history_[static_cast<size_t>(sequence)].resize(static_cast<size_t>(length));
}

// A sequence that was truncated to a place whose tail is gone runs those tokens again.
Status SequenceRunner::HoldTail(int sequence) {
  const int32_t length = lengths_[static_cast<size_t>(sequence)];
  if (tail_ == nullptr || tail_->Holds(sequence, length)) return Status::Ok();
  const int32_t from = length / kKvTailTokens * kKvTailTokens;
  const std::vector<int32_t>& history = history_[static_cast<size_t>(sequence)];
  const std::vector<int32_t> tokens(history.begin() + from, history.end());
  Truncate(sequence, from);
  return Prefill(sequence, tokens, {}, [](size_t, std::span<float>) {});
}

Status SequenceRunner::Run(std::span<const int32_t> tokens,
                           std::span<const AttentionSpanOfSequence> spans, size_t first,
                           Sink sink) {
  return pass_->Run({tokens, positions_, spans, layers_, rows_, tail_.get(), slots_},
                    [&](int begin, int count, float* logits) {
                      for (int i = 0; i < count; ++i) {
                        sink(first + static_cast<size_t>(begin + i),
                             {logits + static_cast<size_t>(i) * vocab_, vocab_});
                      }
                    });
}

}  // namespace kvasir
