#include "certify/choose_kv.h"

#include <algorithm>
#include <cstdio>

namespace kvasir {
namespace {

constexpr KvPair kI8 = {KvType::kI8, KvType::kI8};
constexpr KvPair kF16 = {KvType::kF16, KvType::kF16};
constexpr int kBlockTokens = 16;

bool Contains(std::span<const KvPair> pairs, KvPair pair) {
  return std::find(pairs.begin(), pairs.end(), pair) != pairs.end();
}

bool BelowEightBits(KvPair pair) {
  return pair.k == KvType::kI4 || pair.v == KvType::kI4;
}

const Certificate* Find(std::span<const Certificate> certificates, KvPair pair) {
  for (const Certificate& certificate : certificates) {
    if (certificate.pair == pair) return &certificate;
  }
  return nullptr;
}

const Certificate* SmallestPassing(std::span<const Certificate> certificates, KvQuality quality,
                                   std::span<const KvPair> possible) {
  const Certificate* best = nullptr;
  for (const Certificate& certificate : certificates) {
    if (!Contains(possible, certificate.pair) || !certificate.Passes(quality)) continue;
    if (certificate.settings.quick && BelowEightBits(certificate.pair)) continue;
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

bool KvQuickCheck::Passes() const {
  // Of 512 positions a true 99 % shows as less than 98 % one time in sixty. A control that keeps
  // either means that the look was blind.
  constexpr double kMean = 0.002, kTop1 = 0.98;
  if (i8.count == 0 || i8.broken > 0 || !(i8.mean <= kMean) || !(i8.top1 >= kTop1)) return false;
  return control.broken == control.count || (control.mean > kMean && control.top1 < kTop1);
}

bool NeedsQuickCheck(std::span<const Certificate> certificates, KvQuality quality,
                     std::span<const KvPair> possible) {
  return Contains(possible, kI8) && SmallestPassing(certificates, quality, possible) == nullptr &&
         Find(certificates, kI8) == nullptr;
}

KvChoice ChooseKvPair(std::span<const Certificate> certificates, KvQuality quality,
                      std::span<const KvPair> possible, const KvQuickCheck* check) {
  const std::string wanted(KvQualityName(quality));
  if (const Certificate* best = SmallestPassing(certificates, quality, possible); best != nullptr) {
    return {best->pair, best->name() + ": the smallest format certified " + wanted +
                            " for this model (up to " + std::to_string(best->settings.max_len) +
                            " tokens)"};
  }
  if (!Contains(possible, kI8)) return {kF16, "f16: i8 is not served for this model"};
  if (const Certificate* i8 = Find(certificates, kI8); i8 != nullptr) {
    return {kF16, "f16: no smaller format is certified " + wanted + "; i8: " + i8->WhyNot(quality)};
  }
  if (check == nullptr) return {kF16, "f16: nothing is certified"};
  if (!check->Passes()) return {kF16, "f16: i8 failed its quick check, " + QuickText(*check)};
  return {kI8, "i8: passed its quick check, " + QuickText(*check) +
                   "; `kvasir certify` looks closer and may find a smaller one"};
}

Result<KvChoice> ChooseKvType(const Model& model, Sidecar* sidecar, KvQuality quality,
                              const ForwardOptions& forward, Executor& executor,
                              const std::function<void(double fraction)>& progress,
                              std::vector<std::string>* notes) {
  const std::vector<Certificate> certificates = LoadCertificates(*sidecar, notes);
  std::vector<KvPair> possible = {kF16};
  for (const Certificate& certificate : certificates) possible.push_back(certificate.pair);
  possible.push_back(kI8);
  std::erase_if(possible, [&](KvPair pair) {
    return !MakeKvLayout(model.config(), pair, kBlockTokens).ok();
  });
  if (!NeedsQuickCheck(certificates, quality, possible)) {
    return ChooseKvPair(certificates, quality, possible, nullptr);
  }
  KVASIR_ASSIGN_OR_RETURN(
      const KvQuickCheck check,
      internal::LoadQuickCheck(model, sidecar, forward, executor, progress, notes));
  return ChooseKvPair(certificates, quality, possible, &check);
}

KvVerdict StandingOf(std::span<const Certificate> certificates, KvPair pair, KvQuality quality) {
  const auto wide = [](KvType type) { return type == KvType::kF32 || type == KvType::kF16; };
  if (wide(pair.k) && wide(pair.v)) return {KvStanding::kReference, "reference"};
  const Certificate* certificate = Find(certificates, pair);
  if (certificate == nullptr) return {KvStanding::kUnknown, "not certified"};
  if (certificate->Passes(quality)) {
    return {KvStanding::kCertified,
            "certified: " + std::string(KvQualityName(*certificate->quality()))};
  }
  return {KvStanding::kFailed, "failed its certificate for " + std::string(KvQualityName(quality)) +
                                   ": " + certificate->WhyNot(quality)};
}

}  // namespace kvasir
