#include "calibrate/own_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <variant>

#include "base/hash.h"
#include "calibrate/sequence_runner.h"
#include "kernels/elementwise.h"
#include "kvcache/kv_layout.h"

namespace kvasir {
namespace {

constexpr float kReach = 12.0F;  // tokens further below the likeliest are never drawn
constexpr int kBlockTokens = 16;

int32_t FirstToken(const Model& model, uint64_t seed, int sequence) {
  const auto vocab = static_cast<uint64_t>(model.config().vocab);
  if (const GgufKey* key = model.file().Find("tokenizer.ggml.bos_token_id"); key != nullptr) {
    if (const auto* bos = std::get_if<uint64_t>(&key->value); bos != nullptr && *bos < vocab) {
      return static_cast<int32_t>(*bos);
    }
  }
  return static_cast<int32_t>(CounterRandom(seed, static_cast<uint64_t>(sequence), 0) % vocab);
}

}  // namespace

int32_t DrawToken(std::span<const float> logits, double uniform) {
  float top = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) {
    if (std::isfinite(logit)) top = std::max(top, logit);
  }
  const auto weight = [&](float logit) {
    if (!std::isfinite(logit) || logit < top - kReach) return 0.0;
    return static_cast<double>(Exp(logit - top));
  };
  double sum = 0;
  for (const float logit : logits) sum += weight(logit);
  double left = uniform * sum;
  int32_t last = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double w = weight(logits[i]);
    if (w == 0) continue;
    last = static_cast<int32_t>(i);
    left -= w;
    if (left < 0) return last;
  }
  return last;
}

Result<std::vector<std::vector<int32_t>>> WriteOwnText(
    const Model& model, const OwnTextOptions& options, Executor& executor,
    const std::function<void(double fraction)>& progress) {
  const ModelConfig& config = model.config();
  if (options.sequences < 1 || options.tokens < 1 || options.tokens > config.context) {
    return InvalidArgument("own text: " + std::to_string(options.sequences) + " sequences of " +
                           std::to_string(options.tokens) + " tokens (limit: at least 1 of 1 to " +
                           std::to_string(config.context) + ")");
  }
  KVASIR_ASSIGN_OR_RETURN(const KvLayout layout,
                          KvLayout::Make(config.cache, kBlockTokens, KvType::kF32, KvType::kF32));
  const ForwardOptions forward{
      options.precision, options.sequences, options.tokens, {}, options.observer};
  KVASIR_ASSIGN_OR_RETURN(
      std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Make(model, forward, layout, options.sequences, executor));
  const auto n = static_cast<size_t>(options.sequences);
  std::vector<std::vector<int32_t>> text(n);
  std::vector<int32_t> last(n), next(n);
  for (size_t s = 0; s < n; ++s) {
    last[s] = FirstToken(model, options.seed, static_cast<int>(s));
    text[s].push_back(last[s]);
  }
  // The pass that reads the last token is run for the observer alone.
  for (int at = 1; at <= options.tokens; ++at) {
    if (at == options.tokens && options.observer == nullptr) break;
    if (options.stop != nullptr && options.stop->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, "stopped");
    }
    const auto draw = [&](size_t s, std::span<float> logits) {
      next[s] = DrawToken(logits, CounterUniform(options.seed, s, static_cast<uint64_t>(at)));
    };
    KVASIR_RETURN_IF_ERROR(runner->Decode(last, draw));
    last = next;
    if (at < options.tokens) {
      for (size_t s = 0; s < n; ++s) text[s].push_back(last[s]);
    }
    if (progress) progress(static_cast<double>(at) / options.tokens);
  }
  return text;
}

}  // namespace kvasir
