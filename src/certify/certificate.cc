#include "certify/certificate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kSection[] = "certificates";
constexpr int kSectionVersion = 1;
constexpr size_t kReasonsShown = 3;

std::string Joined(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kReasonsShown); ++i) {
    text += (text.empty() ? "" : "; ") + parts[i];
  }
  if (parts.size() > kReasonsShown) {
    text += "; and " + std::to_string(parts.size() - kReasonsShown) + " more";
  }
  return text;
}

Status Broken(const char* field) {
  return DataLoss(std::string("certificate: '") + field + "' is missing or broken");
}

// Null if the path of two keys leads nowhere.
const json* Find(const json& object, const char* outer, const char* inner) {
  if (!object.is_object() || !object.contains(outer)) return nullptr;
  const json& found = object[outer];
  if (inner == nullptr) return &found;
  return found.is_object() && found.contains(inner) ? &found[inner] : nullptr;
}

Result<std::string> Text(const json& object, const char* outer, const char* inner) {
  const json* found = Find(object, outer, inner);
  if (found == nullptr || !found->is_string()) return Broken(inner == nullptr ? outer : inner);
  return found->get<std::string>();
}

Result<double> Number(const json& object, const char* outer, const char* inner) {
  const json* found = Find(object, outer, inner);
  if (found == nullptr || !found->is_number()) return Broken(inner == nullptr ? outer : inner);
  const double value = found->get<double>();
  if (!std::isfinite(value) || value < 0) return Broken(inner == nullptr ? outer : inner);
  return value;
}

Result<bool> Flag(const json& object, const char* outer, const char* inner) {
  const json* found = Find(object, outer, inner);
  if (found == nullptr || !found->is_boolean()) return Broken(inner);
  return found->get<bool>();
}

Result<CertifySettings> SettingsFromJson(const json& object) {
  CertifySettings settings;
  KVASIR_ASSIGN_OR_RETURN(settings.precision, Text(object, "settings", "precision"));
  KVASIR_ASSIGN_OR_RETURN(settings.base, Text(object, "settings", "base"));
  KVASIR_ASSIGN_OR_RETURN(settings.text, Text(object, "settings", "text"));
  KVASIR_ASSIGN_OR_RETURN(settings.quick, Flag(object, "settings", "quick"));
  KVASIR_ASSIGN_OR_RETURN(const double max_len, Number(object, "settings", "max_len"));
  if (max_len < 1 || max_len > std::numeric_limits<int32_t>::max()) return Broken("max_len");
  settings.max_len = static_cast<int32_t>(max_len);
  const json* seed = Find(object, "settings", "seed");
  if (seed == nullptr || !seed->is_number_unsigned()) return Broken("seed");
  settings.seed = seed->get<uint64_t>();
  return settings;
}

// Made by the measurement and for the bytes that this build knows?
Status CheckVersions(const json& object, const CacheFormat& format) {
  KVASIR_ASSIGN_OR_RETURN(const double method, Number(object, "method", nullptr));
  KVASIR_ASSIGN_OR_RETURN(const std::string version, Text(object, "format_version", nullptr));
  if (method != kCertifyMethod) {
    return Unimplemented("the certificate of " + CacheFormatName(format) +
                         " was made by another version of the measurement");
  }
  if (version != VersionText(format)) {
    return Unimplemented("the certificate of " + CacheFormatName(format) +
                         " is for another version of the format");
  }
  return Status::Ok();
}

}  // namespace

std::optional<KvQuality> Certificate::quality() const {
  if (!control_failed) return std::nullopt;
  return BestQuality(measures);
}

bool Certificate::Passes(KvQuality wanted) const {
  return control_failed && Shortfalls(measures, wanted).empty();
}

std::string Certificate::WhyNot(KvQuality wanted) const {
  if (!control_failed) {
    return "void: K and V of two bits pass as well, so this measurement says nothing";
  }
  return Joined(Shortfalls(measures, wanted));
}

std::string Certificate::Verdict() const {
  if (!control_failed) return WhyNot(KvQuality::kSmall);
  const std::optional<KvQuality> best = quality();
  if (best == KvQuality::kStrict) return "strict";
  if (!best.has_value()) return "fails: " + WhyNot(KvQuality::kSmall);
  const KvQuality above = *best == KvQuality::kSmall ? KvQuality::kBalanced : KvQuality::kStrict;
  return std::string(KvQualityName(*best)) + "; not " + std::string(KvQualityName(above)) + ": " +
         WhyNot(above);
}

ordered_json CertificateToJson(const Certificate& certificate) {
  const CertifySettings& settings = certificate.settings;
  const std::optional<KvQuality> quality = certificate.quality();
  ordered_json out = {{"format", certificate.name()},
                      {"k", certificate.format.k},
                      {"v", certificate.format.v},
                      {"bytes_per_token", certificate.bytes_per_token},
                      {"method", kCertifyMethod},
                      {"format_version", VersionText(certificate.format)},
                      {"settings",
                       {{"precision", settings.precision},
                        {"base", settings.base},
                        {"text", settings.text},
                        {"max_len", settings.max_len},
                        {"seed", settings.seed},
                        {"quick", settings.quick}}},
                      {"control",
                       {{"kld_mean", certificate.control_mean},
                        {"top1", certificate.control_top1},
                        {"failed", certificate.control_failed}}},
                      {"measures", MeasuresToJson(certificate.measures)}};
  // For readers; judged anew by whoever loads it.
  out["quality"] = quality.has_value() ? ordered_json(KvQualityName(*quality)) : ordered_json();
  out["verdict"] = certificate.Verdict();
  return out;
}

Result<Certificate> CertificateFromJson(const json& object) {
  Certificate certificate;
  KVASIR_ASSIGN_OR_RETURN(const std::string k, Text(object, "k", nullptr));
  KVASIR_ASSIGN_OR_RETURN(const std::string v, Text(object, "v", nullptr));
  const Result<CacheFormat> format = ParseCacheFormat(k + "/" + v, "k");
  if (!format.ok() || format->k != k || format->v != v) return Broken("k");
  certificate.format = *format;
  KVASIR_RETURN_IF_ERROR(CheckVersions(object, certificate.format));
  KVASIR_ASSIGN_OR_RETURN(certificate.bytes_per_token, Number(object, "bytes_per_token", nullptr));
  KVASIR_ASSIGN_OR_RETURN(certificate.settings, SettingsFromJson(object));
  KVASIR_ASSIGN_OR_RETURN(certificate.control_mean, Number(object, "control", "kld_mean"));
  KVASIR_ASSIGN_OR_RETURN(certificate.control_top1, Number(object, "control", "top1"));
  KVASIR_ASSIGN_OR_RETURN(certificate.control_failed, Flag(object, "control", "failed"));
  if (!object.contains("measures")) return Broken("measures");
  KVASIR_ASSIGN_OR_RETURN(certificate.measures, MeasuresFromJson(object["measures"]));
  return certificate;
}

std::vector<Certificate> LoadCertificates(const Sidecar& sidecar, std::vector<std::string>* notes) {
  std::vector<Certificate> certificates;
  const json* section = sidecar.Find(kSection, kSectionVersion);
  if (section == nullptr) return certificates;
  const auto complain = [&](const std::string& what) {
    if (notes != nullptr) notes->push_back(sidecar.path() + ": " + what + "; not used");
  };
  if (!section->is_array()) {
    complain("'certificates' is no list");
    return certificates;
  }
  for (const json& item : *section) {
    Result<Certificate> certificate = CertificateFromJson(item);
    if (certificate.ok()) {
      certificates.push_back(std::move(certificate).value());
    } else {
      complain(certificate.status().message());
    }
  }
  return certificates;
}

Status StoreCertificates(std::span<const Certificate> certificates, Sidecar* sidecar) {
  sidecar->Refresh();  // another process may have certified other formats in the meantime
  std::vector<Certificate> all = LoadCertificates(*sidecar, nullptr);
  for (const Certificate& certificate : certificates) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const Certificate& other) {
      return other.format == certificate.format;
    });
    if (same != all.end()) {
      *same = certificate;
    } else {
      all.push_back(certificate);
    }
  }
  json list = json::array();
  for (const Certificate& certificate : all) list.push_back(json(CertificateToJson(certificate)));
  return sidecar->Store(kSection, kSectionVersion, std::move(list));
}

}  // namespace kvasir
