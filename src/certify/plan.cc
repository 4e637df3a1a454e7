#include "certify/plan.h"

#include <algorithm>
#include <utility>

#include "certify/measure.h"

namespace kvasir {
namespace {

constexpr int kGreedyBatch = 52;
constexpr int kPrompts = 2 * kGreedyBatch;  // at least 100
constexpr int32_t kLeastText = 64;          // a remainder shorter than this is left out
constexpr int32_t kDistances[] = {16,   32,   64,   128,   250,   500,  1000,
                                  2000, 4000, 8000, 16000, 32000, 64000};
constexpr int32_t kQuickDistance = 250;
constexpr int32_t kLeastNeedles = 260;
constexpr int32_t kQuickNeedles = 512;

// What a row of each kind takes, compared with one of a long chunk.
constexpr double kFewDecodes = 2.5;
constexpr double kManyDecodes = 1.2;
constexpr double kNoLogits = 0.7;

Part DecodePart(int index, std::vector<int> texts, std::span<const int32_t> lengths) {
  Part part;
  part.kind = PartKind::kDecode;
  part.name = "decode-" + std::to_string(index);
  part.sequences = static_cast<int32_t>(texts.size());
  const double row = texts.size() < 4 ? kFewDecodes : kManyDecodes;
  for (const int text : texts) {
    const int32_t length = lengths[static_cast<size_t>(text)];
    part.positions = std::max(part.positions, length);
    part.cost += row * length;
  }
  part.texts = std::move(texts);
  return part;
}

void AddRetrieval(int32_t max_len, bool quick, uint64_t seed, std::vector<Part>* parts) {
  for (const int32_t distance : kDistances) {
    if (distance + kRepeatAsked + 2 > max_len || (quick && distance > kQuickDistance)) break;
    const int trials = quick || distance >= 2000 ? 1 : 2;
    for (int trial = 0; trial < trials; ++trial) {
      Part part;
      part.kind = PartKind::kRepeat;
      part.name = "repeat-" + std::to_string(distance) + "-" + std::to_string(trial);
      part.distance = distance;
      part.seed = seed + static_cast<uint64_t>(trial);
      part.positions = distance + kRepeatAsked + 2;
      part.cost = kNoLogits * distance + 2 * kFewDecodes * kRepeatAsked;
      parts->push_back(std::move(part));
    }
  }
  std::vector<int32_t> lengths = {quick ? std::min(max_len, kQuickNeedles) : max_len};
  if (!quick && max_len > 1024) lengths.push_back(1024);
  for (const int32_t length : lengths) {
    if (length < kLeastNeedles) continue;
    Part part;
    part.kind = PartKind::kNeedles;
    part.name = "needles-" + std::to_string(length);
    part.distance = length - kKeyTokens;
    part.seed = seed;
    part.positions = length;
    part.cost = kNoLogits * length + 100;
    parts->push_back(std::move(part));
  }
}

}  // namespace

CertifyPlan MakePlan(int32_t max_len, bool quick, uint64_t seed) {
  CertifyPlan plan;
  const auto add = [&](int count, int32_t tokens) {
    plan.text_tokens.insert(plan.text_tokens.end(), static_cast<size_t>(count),
                            std::min(tokens, max_len));
  };
  if (quick) {
    add(1, max_len);
    add(2, 256);
  } else {
    add(2, max_len);
    add(4, 2048);
    add(8, 512);
  }
  plan.prompts = kPrompts;
  plan.prompt_tokens = std::min(quick ? 8 : 32, std::max(1, max_len / 4));
  plan.greedy_tokens = std::min(quick ? 24 : 128, max_len - plan.prompt_tokens);
  plan.parts = PartsFor(plan.text_tokens, plan, quick, seed);
  return plan;
}

std::vector<Part> PartsFor(std::span<const int32_t> text_tokens, const CertifyPlan& plan,
                           bool quick, uint64_t seed) {
  std::vector<Part> parts;
  const auto n = static_cast<int>(text_tokens.size());
  for (int i = 0; i < n; ++i) {
    Part part;
    part.name = "prefill-" + std::to_string(i);
    part.texts = {i};
    part.positions = text_tokens[static_cast<size_t>(i)];
    part.cost = part.positions;
    parts.push_back(std::move(part));
  }
  // Token by token: the longest text alone, and the middle ones in one batch.
  if (!quick) parts.push_back(DecodePart(0, {0}, text_tokens));
  std::vector<int> batch;
  for (int i = quick ? 1 : 2; i < std::min(n, quick ? 3 : 6); ++i) batch.push_back(i);
  if (batch.empty() && quick) batch.push_back(0);
  if (!batch.empty()) parts.push_back(DecodePart(1, std::move(batch), text_tokens));
  for (int first = 0; first < plan.prompts; first += kGreedyBatch) {
    Part part;
    part.kind = PartKind::kGreedy;
    part.name = "greedy-" + std::to_string(first / kGreedyBatch);
    for (int i = first; i < std::min(first + kGreedyBatch, plan.prompts); ++i) {
      part.texts.push_back(i);
    }
    part.sequences = static_cast<int32_t>(part.texts.size());
    part.positions = plan.prompt_tokens + plan.greedy_tokens;
    part.cost = static_cast<double>(part.sequences) * part.positions;
    parts.push_back(std::move(part));
  }
  AddRetrieval(text_tokens[0], quick, seed, &parts);
  return parts;
}

Result<CertifyTexts> CutTexts(const CertifyPlan& plan, std::span<const int32_t> tokens,
                              int32_t bos) {
  if (tokens.size() < kTextTokens) {
    return InvalidArgument("--text: " + std::to_string(tokens.size()) + " tokens, at least " +
                               std::to_string(kTextTokens) + " are needed",
                           "text");
  }
  const auto cut = [&](size_t first, size_t length) {  // length with the BOS
    std::vector<int32_t> out;
    if (bos >= 0) out.push_back(bos);
    for (size_t i = first; i < tokens.size() && out.size() < length; ++i) out.push_back(tokens[i]);
    return out;
  };
  const size_t head = bos >= 0 ? 1 : 0;
  CertifyTexts result;
  size_t next = 0;
  for (const int32_t length : plan.text_tokens) {
    std::vector<int32_t> text = cut(next, static_cast<size_t>(length));
    next += text.size() - head;
    const bool short_rest = text.size() < static_cast<size_t>(std::min(length, kLeastText));
    if (short_rest && !result.texts.empty()) break;
    result.texts.push_back(std::move(text));
  }
  std::stable_sort(result.texts.begin(), result.texts.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  const auto prompt = static_cast<size_t>(plan.prompt_tokens);
  const size_t room = tokens.size() - prompt;
  for (int i = 0; i < plan.prompts; ++i) {
    const size_t first = room * static_cast<size_t>(i) / static_cast<size_t>(plan.prompts);
    result.prompts.push_back(cut(first, prompt));
  }
  return result;
}

}  // namespace kvasir
