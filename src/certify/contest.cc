#include "certify/contest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvasir {
namespace {

constexpr int kBlockTokens = 16;

Result<std::unique_ptr<SequenceRunner>> MakeRunner(const MeasureContext& context,
                                                   const CacheFormat& format, KvFilter* filter,
                                                   const ContestShape& shape) {
  KVASIR_ASSIGN_OR_RETURN(const KvLayout layout,
                          MakeKvLayout(context.model.config(), format, kBlockTokens));
  ForwardOptions forward = context.forward;
  forward.max_rows = shape.max_rows;
  forward.max_positions = shape.max_positions;
  forward.observer = nullptr;
  forward.kv_filter = filter;
  return SequenceRunner::Make(context.model, std::move(forward), layout, shape.sequences,
                              context.executor);
}

}  // namespace

uint64_t Contest::CacheBytes(const Model& model, const CacheFormat& format,
                             const ContestShape& shape) {
  const Result<KvLayout> layout = MakeKvLayout(model.config(), format, kBlockTokens);
  if (!layout.ok()) return 0;
  const int blocks = (shape.max_positions + kBlockTokens - 1) / kBlockTokens;
  return uint64_t{layout->block_bytes()} * static_cast<uint64_t>(blocks) *
         static_cast<uint64_t>(shape.sequences);
}

Result<std::unique_ptr<Contest>> Contest::Make(const MeasureContext& context,
                                               std::span<const Contender> contenders,
                                               const ContestShape& shape) {
  std::unique_ptr<Contest> contest(new Contest(context));
  contest->max_rows_ = shape.max_rows;
  KVASIR_ASSIGN_OR_RETURN(contest->base_, MakeRunner(context, context.base, nullptr, shape));
  for (const Contender& contender : contenders) {
    RoundingFilter* filter = nullptr;
    if (contender.control_bits > 0) {
      contest->filters_.push_back(
          std::make_unique<RoundingFilter>(context.model.config(), contender.control_bits));
      filter = contest->filters_.back().get();
    }
    KVASIR_ASSIGN_OR_RETURN(std::unique_ptr<SequenceRunner> runner,
                            MakeRunner(context, contender.format, filter, shape));
    contest->runners_.push_back(std::move(runner));
  }
  contest->meter_ = std::make_unique<DivergenceMeter>(
      static_cast<size_t>(shape.max_rows), static_cast<size_t>(context.model.config().vocab),
      context.executor);
  return contest;
}

Status Contest::CheckStop() const {
  if (context_.Stopped()) return Status(StatusCode::kCancelled, "stopped");
  return Status::Ok();
}

Status Contest::Group(size_t rows, size_t begin,
                      FunctionRef<Status(SequenceRunner&, SequenceRunner::Sink)> run, Visit visit) {
  KVASIR_RETURN_IF_ERROR(CheckStop());
  KVASIR_RETURN_IF_ERROR(
      run(*base_, [&](size_t row, std::span<float> logits) { meter_->SetBase(row, logits); }));
  if (!meter_->FinishBase(rows)) {
    return Internal("the model itself gives logits that are not finite, with K and V in " +
                    CacheFormatName(context_.base));
  }
  for (size_t contender = 0; contender < runners_.size(); ++contender) {
    KVASIR_RETURN_IF_ERROR(run(*runners_[contender], [&](size_t row, std::span<float> logits) {
      meter_->SetCandidate(row, logits);
    }));
    const std::span<const Divergence> divergences = meter_->Compare();
    for (size_t row = 0; row < rows; ++row) visit(contender, begin + row, divergences[row]);
  }
  return Status::Ok();
}

Status Contest::Prefill(int sequence, std::span<const int32_t> tokens, Visit visit) {
  const auto chunk = static_cast<size_t>(max_rows_);
  std::vector<int32_t> want(std::min(chunk, tokens.size()));
  std::iota(want.begin(), want.end(), 0);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t count = std::min(chunk, tokens.size() - begin);
    const auto run = [&](SequenceRunner& runner, SequenceRunner::Sink sink) {
      return runner.Prefill(sequence, tokens.subspan(begin, count),
                            std::span<const int32_t>(want).first(count), sink);
    };
    KVASIR_RETURN_IF_ERROR(Group(count, begin, run, visit));
    if (context_.progress) {
      context_.progress(static_cast<double>(begin + count) / static_cast<double>(tokens.size()));
    }
  }
  return Status::Ok();
}

Status Contest::Decode(std::span<const int32_t> tokens, Visit visit) {
  const auto run = [&](SequenceRunner& runner, SequenceRunner::Sink sink) {
    return runner.Decode(tokens, sink);
  };
  return Group(tokens.size(), 0, run, visit);
}

Status Contest::Feed(int sequence, std::span<const int32_t> tokens) {
  const auto nothing = [](size_t, std::span<float>) {};
  const auto chunk = static_cast<size_t>(max_rows_);
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    KVASIR_RETURN_IF_ERROR(CheckStop());
    const std::span<const int32_t> some =
        tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    KVASIR_RETURN_IF_ERROR(base_->Prefill(sequence, some, {}, nothing));
    for (const auto& runner : runners_) {
      KVASIR_RETURN_IF_ERROR(runner->Prefill(sequence, some, {}, nothing));
    }
  }
  return Status::Ok();
}

}  // namespace kvasir
