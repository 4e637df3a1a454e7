// Which cache format `--kv-type auto` takes, and what is known about one that was asked for.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "calibrate/sidecar.h"
#include "certify/budget.h"
#include "certify/cache_format.h"
#include "certify/certificate.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

inline constexpr char kKvAuto[] = "auto";

struct KvChoice {
  CacheFormat format;
  std::string reason;  // one line for the log
};

// A few seconds' look at i8: no retrieval, no long texts.
struct KvQuickCheck {
  Spread i8;       // prefill mode against f16
  Spread control;  // two bits, the same text
  bool Passes(KvQuality quality) const { return WhyNot(quality).empty(); }
  std::string WhyNot(KvQuality quality) const;  // one line; "" if it passes
};

// The rule, without a model. Of the formats that are possible here and whose certificate keeps
// `quality` the one of the fewest bytes per token (certificates: those that count). Where i8
// has no certificate, `check` decides about it (null: there is none, and i8 is not taken). Else
// f16.
KvChoice ChooseCacheFormat(std::span<const Certificate> certificates, KvQuality quality,
                           std::span<const CacheFormat> possible, const KvQuickCheck* check);
// Those of `certificates` that count for a model of this shape, their bytes per token computed
// anew: what four bits do to long texts must have been looked at, so a certificate of less than
// eight bits passes `quality` only with texts of 4,096 tokens (or of the model's context) and no
// --quick; one that fails counts however short it was. A note for each that does not count (may be
// null).
std::vector<Certificate> CertificatesThatCount(std::vector<Certificate> certificates,
                                               const ModelConfig& config, KvQuality quality,
                                               std::vector<std::string>* notes);

// Would ChooseCacheFormat look at a check?
bool NeedsQuickCheck(std::span<const Certificate> certificates, KvQuality quality,
                     std::span<const CacheFormat> possible);

// The whole of it: certificates from the sidecar, the check from the sidecar or made now and stored
// there. forward: what is known about the model. progress: a growing fraction,
// called only where something is computed. What went wrong with files goes to notes, and why a
// check could not be made: f16 is taken then. kCancelled is the only error.
Result<KvChoice> ChooseKvType(const Model& model, Sidecar* sidecar, KvQuality quality,
                              const ForwardOptions& forward, Executor& executor,
                              const std::function<void(double fraction)>& progress,
                              std::vector<std::string>* notes);

Result<KvQuickCheck> MakeQuickCheck(const Model& model, const ForwardOptions& forward,
                                    Executor& executor,
                                    const std::function<void(double fraction)>& progress);

namespace internal {
// From the sidecar, or made now and stored there.
Result<KvQuickCheck> LoadQuickCheck(const Model& model, Sidecar* sidecar,
                                    const ForwardOptions& forward, Executor& executor,
                                    const std::function<void(double fraction)>& progress,
                                    std::vector<std::string>* notes);
}  // namespace internal

// Of a format that is served, whoever chose it.
enum class KvStanding : uint8_t { kReference, kCertified, kFailed, kUnknown };
struct KvVerdict {
  KvStanding standing = KvStanding::kUnknown;
  std::string text;  // "certified: strict", "failed: …", "not certified", "reference"
};
KvVerdict StandingOf(std::span<const Certificate> certificates, const CacheFormat& format,
                     KvQuality quality);

// What a server does with its flags. k and v: as given, or both "auto". notes receives what the log
// should say: how auto chose, and that a format is served although its certificate says no.
struct KvDecision {
  CacheFormat format;
  KvVerdict verdict;
};
Result<KvDecision> DecideKv(const Model& model, const std::string& k, const std::string& v,
                            Sidecar* sidecar, KvQuality quality, const ForwardOptions& forward,
                            Executor& executor,
                            const std::function<void(double fraction)>& progress,
                            std::vector<std::string>* notes);

}  // namespace kvasir
