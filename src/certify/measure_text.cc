#include <algorithm>

#include "base/check.h"
#include "certify/measure.h"

namespace kvasir {

PartResults MeasurePrefill(const MeasureContext& context, std::span<const Contender> contenders,
                           const Tokens& text, int sequence) {
  const int rows = DivergenceMeter::RowsFor(static_cast<size_t>(context.model.config().vocab));
  const auto length = static_cast<int>(text.size());
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest,
                          Contest::Make(context, contenders, {1, std::min(rows, length), length}));
  std::vector<PartResult> results(contenders.size());
  for (PartResult& result : results) result.text.push_back({sequence, {}, ""});
  KVASIR_RETURN_IF_ERROR(
      contest->Prefill(0, text, [&](size_t contender, size_t, const Divergence& divergence) {
        results[contender].text[0].Add(divergence);
      }));
  return results;
}

PartResults MeasureDecode(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const Tokens> texts, std::span<const int> indexes) {
  KVASIR_CHECK(texts.size() == indexes.size() && !texts.empty());
  // Longest first: those that are still going are the first ones of the batch.
  std::vector<size_t> order(texts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return texts[a].size() > texts[b].size(); });
  const auto n = static_cast<int>(texts.size());
  const size_t length = texts[order[0]].size();
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest,
                          Contest::Make(context, contenders, {n, n, static_cast<int>(length)}));
  std::vector<PartResult> results(contenders.size());
  for (PartResult& result : results) {
    for (const int index : indexes) result.text.push_back({index, {}, ""});
  }
  Tokens step;
  for (size_t at = 0; at < length; ++at) {
    step.clear();
    for (const size_t i : order) {
      if (texts[i].size() > at) step.push_back(texts[i][at]);
    }
    KVASIR_RETURN_IF_ERROR(
        contest->Decode(step, [&](size_t contender, size_t row, const Divergence& divergence) {
          results[contender].text[order[row]].Add(divergence);
        }));
    if (context.progress)
      context.progress(static_cast<double>(at + 1) / static_cast<double>(length));
  }
  return results;
}

PartResults MeasureGreedy(const MeasureContext& context, std::span<const Contender> contenders,
                          std::span<const Tokens> prompts, int tokens) {
  KVASIR_CHECK(!prompts.empty() && tokens > 0);
  const auto n = static_cast<int>(prompts.size());
  const size_t prompt_tokens = prompts[0].size();
  const auto length = static_cast<int>(prompt_tokens) + tokens;
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest,
                          Contest::Make(context, contenders, {n, n, length}));
  std::vector<PartResult> results(contenders.size());
  for (PartResult& result : results) result.first_difference.assign(prompts.size(), tokens);
  size_t going = contenders.size() * prompts.size();
  Tokens step(prompts.size());
  const int steps = static_cast<int>(prompt_tokens) - 1 + tokens;
  for (int at = 0; at < steps && going > 0; ++at) {
    const int written = at - static_cast<int>(prompt_tokens) + 1;  // tokens chosen before this step
    for (size_t i = 0; i < prompts.size(); ++i) {
      KVASIR_CHECK(prompts[i].size() == prompt_tokens);
      step[i] = written <= 0 ? prompts[i][static_cast<size_t>(at)] : contest->base_top(i);
    }
    KVASIR_RETURN_IF_ERROR(
        contest->Decode(step, [&](size_t contender, size_t row, const Divergence& divergence) {
          int32_t& first = results[contender].first_difference[row];
          if (written < 0 || first < tokens || (divergence.finite && divergence.same_top)) return;
          first = written;
          --going;
        }));
    if (context.progress) context.progress(static_cast<double>(at + 1) / steps);
  }
  return results;
}

}  // namespace kvasir
