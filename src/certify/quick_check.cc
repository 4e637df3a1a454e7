// The quick check of i8 at a first start.
#include <algorithm>

#include "calibrate/own_text.h"
#include "certify/choose_kv.h"
#include "certify/measure.h"

namespace kvasir {
namespace {

constexpr char kSection[] = "kv_quick_check";
constexpr int kVersion = 2;
constexpr int kTexts = 4;
constexpr int kTokens = 128;

Spread SpreadOf(const std::vector<MeasuredPart>& parts) {
  return SumUp(parts, kTokens, 1).prefill;
}

nlohmann::json ToJson(const KvQuickCheck& check) {
  return {{"format_version", KvFormatVersion(KvType::kI8)},
          {"i8", nlohmann::json(SpreadToJson(check.i8))},
          {"control", nlohmann::json(SpreadToJson(check.control))}};
}

Result<KvQuickCheck> FromJson(const nlohmann::json& object) {
  if (!object.is_object() || !object.contains("i8") || !object.contains("control") ||
      !object.contains("format_version") ||
      object["format_version"] != KvFormatVersion(KvType::kI8)) {
    return DataLoss("kv_quick_check: broken, or of another version of i8");
  }
  KvQuickCheck check;
  KVASIR_ASSIGN_OR_RETURN(check.i8, SpreadFromJson(object["i8"]));
  KVASIR_ASSIGN_OR_RETURN(check.control, SpreadFromJson(object["control"]));
  return check;
}

}  // namespace

Result<KvQuickCheck> MakeQuickCheck(const Model& model, const ForwardOptions& forward,
                                    Executor& executor,
                                    const std::function<void(double fraction)>& progress) {
  OwnTextOptions text;
  text.sequences = kTexts;
  text.tokens = std::min(kTokens, model.config().context);
  text.precision = Precision::kExact;
  KVASIR_ASSIGN_OR_RETURN(const std::vector<Tokens> texts,
                          WriteOwnText(model, text, executor, [&](double fraction) {
                            if (progress) progress(0.5 * fraction);
                          }));
  // Exact, so that only the cache differs: eight-bit activations would turn its smallest changes
  // into larger ones.
  ForwardOptions exact = forward;
  exact.precision = Precision::kExact;
  const MeasureContext context{model, exact, {}, executor, nullptr, {}};
  const Contender contenders[] = {Contender::Of(CacheFormat::Of("i8")), Contender::Control()};
  std::vector<MeasuredPart> i8, control;
  for (int i = 0; i < kTexts; ++i) {
    // The control on one text: it only has to be seen.
    const auto some = std::span(contenders).first(i == 0 ? 2 : 1);
    KVASIR_ASSIGN_OR_RETURN(std::vector<PartResult> results,
                            MeasurePrefill(context, some, texts[static_cast<size_t>(i)], i));
    i8.push_back({MeasuredPart::Mode::kPrefill, std::move(results[0])});
    if (i == 0) control.push_back({MeasuredPart::Mode::kPrefill, std::move(results[1])});
    if (progress) progress(0.5 + 0.5 * (i + 1) / kTexts);
  }
  return KvQuickCheck{SpreadOf(i8), SpreadOf(control)};
}

namespace internal {

Result<KvQuickCheck> LoadQuickCheck(const Model& model, Sidecar* sidecar,
                                    const ForwardOptions& forward, Executor& executor,
                                    const std::function<void(double fraction)>& progress,
                                    std::vector<std::string>* notes) {
  if (const nlohmann::json* data = sidecar->Find(kSection, kVersion); data != nullptr) {
    Result<KvQuickCheck> known = FromJson(*data);
    if (known.ok()) return known;
    notes->push_back(sidecar->path() + ": " + known.status().message() + "; done anew");
  }
  KVASIR_ASSIGN_OR_RETURN(const KvQuickCheck check,
                          MakeQuickCheck(model, forward, executor, progress));
  if (const Status stored = sidecar->Store(kSection, kVersion, ToJson(check)); !stored.ok()) {
    notes->push_back("the quick check of i8 could not be stored and will be done again: " +
                     stored.message());
  }
  return check;
}

}  // namespace internal
}  // namespace kvasir
