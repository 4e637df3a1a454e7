// Certificate: what is known about one cache format for one model, and how it was found. Stands in
// the sidecar's section "certificates", so it is tied to the model's fingerprint; the rest of what
// it is tied to stands in itself.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "calibrate/sidecar.h"
#include "certify/budget.h"
#include "certify/cache_format.h"
#include "certify/measures.h"

namespace kvasir {

// Rises whenever what is measured, or how, changes.
inline constexpr int kCertifyMethod = 1;

struct CertifySettings {
  std::string precision = "exact";
  std::string base = "f16";  // format that the others are compared with
  std::string text = "own";  // or "file <hash of its tokens>"
  int32_t max_len = 0;       // tokens of the longest text
  uint64_t seed = 1;
  bool quick = false;
  friend bool operator==(const CertifySettings&, const CertifySettings&) = default;
};

struct Certificate {
  CacheFormat format;
  double bytes_per_token = 0;  // K and V, all layers
  CertifySettings settings;
  Measures measures;
  // What the same measurement says about K and V of two bits. If those pass any budget it cannot
  // tell good from bad, and the certificate is void.
  double control_mean = 0;  // KLD, prefill mode
  double control_top1 = 0;
  bool control_failed = false;

  std::string name() const { return CacheFormatName(format); }
  // Nothing if the certificate is void or the format keeps no budget.
  std::optional<KvQuality> quality() const;
  bool Passes(KvQuality wanted) const;
  // Why not `wanted`: one line with the first three reasons, "" if it passes.
  std::string WhyNot(KvQuality wanted) const;
  // The verdict and its reason, one line: "balanced; not strict: mean KLD 0.0057 > 0.001".
  std::string Verdict() const;
};

nlohmann::ordered_json CertificateToJson(const Certificate& certificate);
// kDataLoss naming the field; kUnimplemented where method or format version are not this build's.
Result<Certificate> CertificateFromJson(const nlohmann::json& json);

// All that are usable; of those that are not, a line each in notes (may be null).
std::vector<Certificate> LoadCertificates(const Sidecar& sidecar, std::vector<std::string>* notes);
// Adds to those that are there; one of the same format is replaced.
Status StoreCertificates(std::span<const Certificate> certificates, Sidecar* sidecar);

}  // namespace kvasir
