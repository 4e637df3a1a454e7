// Contest: one model over several caches at once. The base and every contender read the same
// tokens, in lockstep; only the format of the cache differs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "calibrate/sequence_runner.h"
#include "certify/cache_format.h"
#include "certify/divergence.h"
#include "certify/rounding_filter.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

struct Contender {
  std::string name;  // in reports and work files
  CacheFormat format;
  int control_bits = 0;  // > 0: K and V pass RoundingFilter(bits) first

  static Contender Of(const CacheFormat& format) { return {CacheFormatName(format), format, 0}; }
  // "int2": f16 rows of two bits.
  static Contender Control() { return {"int2", CacheFormat(), 2}; }
};

// What all measurements are given.
struct MeasureContext {
  const Model& model;
  ForwardOptions forward;  // precision and what it needs; sizes and hooks are set by the contest
  CacheFormat base;
  Executor& executor;
  const std::atomic<bool>* stop = nullptr;        // set from outside: give up soon
  std::function<void(double fraction)> progress;  // of the part at hand; may be empty

  bool Stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

struct ContestShape {
  int sequences = 1;
  int max_rows = 1;  // of one call
  int max_positions = 1;
};

class Contest {
 public:
  static Result<std::unique_ptr<Contest>> Make(const MeasureContext& context,
                                               std::span<const Contender> contenders,
                                               const ContestShape& shape);
  // Memory that the caches of one contender (or the base) take.
  static uint64_t CacheBytes(const Model& model, const CacheFormat& format,
                             const ContestShape& shape);

  SequenceRunner& base() { return *base_; }
  SequenceRunner& runner(size_t contender) { return *runners_[contender]; }
  size_t size() const { return runners_.size(); }

  using Visit = FunctionRef<void(size_t contender, size_t index, const Divergence& divergence)>;
  // Feeds tokens to `sequence` of the base and of all contenders, at most max_rows at a time, and
  // visits what comes out after each token; index: of the token. kInternal if the base itself gives
  // no finite logits, kCancelled when stopped.
  Status Prefill(int sequence, std::span<const int32_t> tokens, Visit visit);
  // One token for each of the sequences 0 to tokens.size() - 1; index: the sequence.
  Status Decode(std::span<const int32_t> tokens, Visit visit);
  // The base's likeliest token after the last Decode.
  int32_t base_top(size_t sequence) const { return meter_->base_top(sequence); }
  // Feeds tokens to all without looking at what comes out.
  Status Feed(int sequence, std::span<const int32_t> tokens);
  Status CheckStop() const;

 private:
  explicit Contest(const MeasureContext& context) : context_(context) {}
  // Runs one group of rows through all; visits with index begin + row.
  Status Group(size_t rows, size_t begin,
               FunctionRef<Status(SequenceRunner& runner, SequenceRunner::Sink sink)> run,
               Visit visit);

  const MeasureContext& context_;
  int max_rows_ = 0;
  std::unique_ptr<SequenceRunner> base_;
  std::vector<std::unique_ptr<RoundingFilter>> filters_;
  std::vector<std::unique_ptr<SequenceRunner>> runners_;
  std::unique_ptr<DivergenceMeter> meter_;
};

}  // namespace kvasir
