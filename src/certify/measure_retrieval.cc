#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "certify/measure.h"

namespace kvasir {
namespace {

constexpr int kChunkRows = 128;
constexpr int kRepeatSkipped = 4;  // places at the start of the copy that nobody could know
constexpr int kDepths = 8;
constexpr int kNeedlesEach = 2;

int32_t Draw(std::span<const int32_t> pool, uint64_t seed, uint64_t stream, uint64_t at) {
  return pool[CounterRandom(seed, stream, at) % pool.size()];
}

// Gives `ask` to a sequence that is forgotten again, and compares the likeliest token after its
// last one with `expected`. [0]: the base, then the contenders.
Result<std::vector<bool>> Ask(Contest* contest, std::span<const int32_t> ask, int32_t expected) {
  const auto last = static_cast<int32_t>(ask.size()) - 1;
  std::vector<bool> right;
  for (size_t i = 0; i <= contest->size(); ++i) {
    SequenceRunner& runner = i == 0 ? contest->base() : contest->runner(i - 1);
    const int32_t before = runner.length(0);
    bool good = false;
    KVASIR_RETURN_IF_ERROR(runner.Prefill(0, ask, {&last, 1}, [&](size_t, std::span<float> logits) {
      good = Likeliest(logits) == expected;
    }));
    runner.Truncate(0, before);
    right.push_back(good);
  }
  return right;
}

// Questions whose answers the base does not know say nothing about a format.
void Count(const std::vector<bool>& right, size_t cell, std::vector<PartResult>* results) {
  if (!right[0]) return;
  for (size_t contender = 0; contender < results->size(); ++contender) {
    RetrievalCell& counts = (*results)[contender].cells[cell];
    ++counts.counted;
    if (right[contender + 1]) ++counts.right;
  }
}

}  // namespace

PartResults MeasureRepeat(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const int32_t> pool, int32_t first, int distance,
                          uint64_t seed) {
  KVASIR_CHECK(!pool.empty() && distance > kRepeatSkipped);
  const int asked = std::min(distance, kRepeatAsked);
  Tokens tokens = {first};
  for (int i = 0; i < distance; ++i) {
    tokens.push_back(Draw(pool, seed, static_cast<uint64_t>(distance), static_cast<uint64_t>(i)));
  }
  const auto at = [&](int i) { return tokens[1 + static_cast<size_t>(i % distance)]; };
  KVASIR_ASSIGN_OR_RETURN(
      const std::unique_ptr<Contest> contest,
      Contest::Make(context, contenders, {1, kChunkRows, 1 + distance + asked + 1}));
  KVASIR_RETURN_IF_ERROR(contest->Feed(0, tokens));
  std::vector<PartResult> results(contenders.size());
  for (PartResult& result : results) result.cells.push_back({"repeat", distance, 0, 0});
  for (int i = 0; i < asked; ++i) {
    const int32_t next = at(i);
    if (i >= kRepeatSkipped) {
      KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> right,
                              Ask(contest.get(), {&next, 1}, at(i + 1)));
      Count(right, 0, &results);
    }
    KVASIR_RETURN_IF_ERROR(contest->Feed(0, {&next, 1}));
  }
  return results;
}

PartResults MeasureNeedles(const MeasureContext& context, std::span<const Contender> contenders,
                           Tokens text, std::span<const int32_t> pool, uint64_t seed) {
  const auto length = static_cast<int>(text.size());
  KVASIR_CHECK(!pool.empty() && length >= 256);
  constexpr int kNeedles = kDepths * kNeedlesEach;
  const int stride = length / kNeedles;  // >= 16: needles do not meet
  std::vector<PartResult> results(contenders.size());
  std::vector<Tokens> needles;
  for (int i = 0; i < kNeedles; ++i) {
    Tokens needle;
    for (int j = 0; j <= kKeyTokens; ++j) {
      needle.push_back(Draw(pool, seed, static_cast<uint64_t>(length),
                            static_cast<uint64_t>(i * (kKeyTokens + 1) + j)));
    }
    // The first tokens of a text are special to many models: no needle there.
    const int at = i * stride + stride / 2;
    std::copy(needle.begin(), needle.end(), text.begin() + at);
    if (i % kNeedlesEach == 0) {
      for (PartResult& result : results) result.cells.push_back({"needle", length - at, 0, 0});
    }
    needles.push_back(std::move(needle));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest,
                          Contest::Make(context, contenders, {1, kChunkRows, length + kKeyTokens}));
  KVASIR_RETURN_IF_ERROR(contest->Feed(0, text));
  for (int i = 0; i < kNeedles; ++i) {
    KVASIR_RETURN_IF_ERROR(contest->CheckStop());
    const Tokens& needle = needles[static_cast<size_t>(i)];
    KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> right,
                            Ask(contest.get(), std::span(needle).first(kKeyTokens), needle.back()));
    Count(right, static_cast<size_t>(i / kNeedlesEach), &results);
  }
  return results;
}

}  // namespace kvasir
