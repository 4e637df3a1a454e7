#include "certify/choose_kv.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvasir {
namespace {

const CacheFormat& I8() {
  static const CacheFormat format = CacheFormat::Of("i8");
  return format;
}

const CacheFormat& F16() {
  static const CacheFormat format;
  return format;
}

constexpr int kBlockTokens = 16;
constexpr int32_t kLongText = 4096;

bool Contains(std::span<const CacheFormat> formats, const CacheFormat& format) {
  return std::find(formats.begin(), formats.end(), format) != formats.end();
}

bool BelowEightBits(const CacheFormat& format) {
  const std::vector<KvType> types = TypesIn(format);
  return std::find(types.begin(), types.end(), KvType::kI4) != types.end();
}

const Certificate* Find(std::span<const Certificate> certificates, const CacheFormat& format) {
  for (const Certificate& certificate : certificates) {
    if (certificate.format == format) return &certificate;
  }
  return nullptr;
}

const Certificate* SmallestPassing(std::span<const Certificate> certificates, KvQuality quality,
                                   std::span<const CacheFormat> possible) {
  const Certificate* best = nullptr;
  for (const Certificate& certificate : certificates) {
    if (!Contains(possible, certificate.format) || !certificate.Passes(quality)) continue;
    if (best == nullptr || certificate.bytes_per_token < best->bytes_per_token) best = &certificate;
  }
  return best;
}

std::string QuickText(const KvQuickCheck& check) {
  char text[160];
  std::snprintf(text, sizeof(text), "mean KLD %.2g, top-1 %.1f %% at %lld positions", check.i8.mean,
                check.i8.top1 * 100, static_cast<long long>(check.i8.count));
  return text;
}

}  // namespace

std::string KvQuickCheck::WhyNot(KvQuality quality) const {
  // The mean is steady and has strict's limit; the share guards it: of 512 positions a true 98 %
  // shows as less than 96 % one time in a thousand. strict would rather refuse. A control that
  // keeps either means that the look was blind.
  constexpr double kMean = 0.001, kTop1 = 0.96;
  const double top1 = quality == KvQuality::kStrict ? BudgetOf(quality).top1 : kTop1;
  if (i8.count == 0 || control.count == 0) return "nothing was seen";
  if (i8.broken > 0) return "logits that are not finite";
  char text[96] = "";
  if (!(i8.mean <= kMean)) {
    std::snprintf(text, sizeof(text), "mean KLD %.2g > %g", i8.mean, kMean);
  } else if (!(i8.top1 >= top1)) {
    std::snprintf(text, sizeof(text), "top-1 %.1f %% < %g %%", i8.top1 * 100, top1 * 100);
  } else if (control.broken < control.count && (control.mean <= kMean || control.top1 >= kTop1)) {
    return "blind: it cannot tell two bits from sixteen on this model";
  }
  return text;
}

std::vector<Certificate> CertificatesThatCount(std::vector<Certificate> certificates,
                                               const ModelConfig& config, KvQuality quality,
                                               std::vector<std::string>* notes) {
  const int32_t enough = std::min(config.context, kLongText);
  std::vector<Certificate> counting;
  for (Certificate& certificate : certificates) {
    const bool seen = !certificate.settings.quick && certificate.settings.max_len >= enough;
    if (BelowEightBits(certificate.format) && !seen && certificate.Passes(quality)) {
      if (notes != nullptr) {
        notes->push_back("the certificate of " + certificate.name() +
                         " does not count: fewer than eight bits need one without --quick and with "
                         "texts of " +
                         std::to_string(enough) + " tokens");
      }
      continue;
    }
    const auto layout = MakeKvLayout(config, certificate.format, kBlockTokens);
    if (layout.ok()) certificate.bytes_per_token = layout->bytes_per_token();
    counting.push_back(std::move(certificate));
  }
  return counting;
}

bool NeedsQuickCheck(std::span<const Certificate> certificates, KvQuality quality,
                     std::span<const CacheFormat> possible) {
  return Contains(possible, I8()) && SmallestPassing(certificates, quality, possible) == nullptr &&
         Find(certificates, I8()) == nullptr;
}

KvChoice ChooseCacheFormat(std::span<const Certificate> certificates, KvQuality quality,
                           std::span<const CacheFormat> possible, const KvQuickCheck* check) {
  const std::string wanted(KvQualityName(quality));
  if (const Certificate* best = SmallestPassing(certificates, quality, possible); best != nullptr) {
    return {best->format, best->name() + ": the smallest format certified " + wanted +
                              " for this model (up to " + std::to_string(best->settings.max_len) +
                              " tokens)"};
  }
  if (!Contains(possible, I8())) return {F16(), "f16: i8 is not served for this model"};
  if (const Certificate* i8 = Find(certificates, I8()); i8 != nullptr) {
    return {F16(),
            "f16: no smaller format is certified " + wanted + "; i8: " + i8->WhyNot(quality)};
  }
  if (check == nullptr) return {F16(), "f16: nothing is certified"};
  if (const std::string why = check->WhyNot(quality); !why.empty()) {
    return {F16(), "f16: i8 failed its quick check (" + wanted + "): " + why};
  }
  return {I8(), "i8: passed its quick check, " + QuickText(*check) +
                    "; `kvasir certify` looks closer and may find a smaller one"};
}

Result<KvChoice> ChooseKvType(const Model& model, Sidecar* sidecar, KvQuality quality,
                              const ForwardOptions& forward, Executor& executor,
                              const std::function<void(double fraction)>& progress,
                              std::vector<std::string>* notes) {
  const std::vector<Certificate> certificates =
      CertificatesThatCount(LoadCertificates(*sidecar, notes), model.config(), quality, notes);
  std::vector<CacheFormat> possible = {F16()};
  for (const Certificate& certificate : certificates) possible.push_back(certificate.format);
  possible.push_back(I8());
  std::erase_if(possible, [&](const CacheFormat& format) {
    return !MakeKvLayout(model.config(), format, kBlockTokens).ok();
  });
  if (!NeedsQuickCheck(certificates, quality, possible)) {
    return ChooseCacheFormat(certificates, quality, possible, nullptr);
  }
  const Result<KvQuickCheck> check =
      internal::LoadQuickCheck(model, sidecar, forward, executor, progress, notes);
  if (check.ok()) return ChooseCacheFormat(certificates, quality, possible, &*check);
  if (check.status().code() == StatusCode::kCancelled) return check.status();
  notes->push_back("i8 could not be checked (" + check.status().message() +
                   "): auto goes by certificates alone; --kv-type i8 or f32 chooses by hand");
  return ChooseCacheFormat(certificates, quality, possible, nullptr);
}

KvVerdict StandingOf(std::span<const Certificate> certificates, const CacheFormat& format,
                     KvQuality quality) {
  const auto wide = [](const std::string& type) { return type == "f32" || type == "f16"; };
  if (wide(format.k) && wide(format.v)) return {KvStanding::kReference, "reference"};
  const Certificate* certificate = Find(certificates, format);
  if (certificate == nullptr) return {KvStanding::kUnknown, "not certified"};
  if (certificate->Passes(quality)) {
    return {KvStanding::kCertified,
            "certified: " + std::string(KvQualityName(*certificate->quality()))};
  }
  return {KvStanding::kFailed, "failed its certificate for " + std::string(KvQualityName(quality)) +
                                   ": " + certificate->WhyNot(quality)};
}

Result<KvDecision> DecideKv(const Model& model, const std::string& k, const std::string& v,
                            Sidecar* sidecar, KvQuality quality, const ForwardOptions& forward,
                            Executor& executor,
                            const std::function<void(double fraction)>& progress,
                            std::vector<std::string>* notes) {
  KvDecision decision;
  if (k == kKvAuto && v == kKvAuto) {
    KVASIR_ASSIGN_OR_RETURN(
        KvChoice choice, ChooseKvType(model, sidecar, quality, forward, executor, progress, notes));
    decision.format = std::move(choice.format);
    decision.verdict = StandingOf(CertificatesThatCount(LoadCertificates(*sidecar, nullptr),
                                                        model.config(), quality, nullptr),
                                  decision.format, quality);
    if (decision.verdict.standing == KvStanding::kUnknown) decision.verdict.text = choice.reason;
    notes->push_back("--kv-type auto takes " + choice.reason);
    return decision;
  }
  KVASIR_ASSIGN_OR_RETURN(decision.format, ParseCacheFormat(k + "/" + v, "--kv-type"));
  decision.verdict = StandingOf(
      CertificatesThatCount(LoadCertificates(*sidecar, notes), model.config(), quality, notes),
      decision.format, quality);
  if (decision.verdict.standing == KvStanding::kFailed) {
    notes->push_back("KV format " + CacheFormatName(decision.format) + " " + decision.verdict.text +
                     "; served all the same, since it was asked for");
  }
  return decision;
}

}  // namespace kvasir
