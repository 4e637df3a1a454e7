// What `kvasir certify` shows: a table, JSON and pictures.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "certify/certificate.h"

namespace kvasir {

struct CertifyReport {
  std::string model;
  uint64_t fingerprint = 0;
  double f16_bytes_per_token = 0;
  std::span<const Certificate> certificates;
};

// A table with a verdict and its reason for each format, and what the control says.
std::string CertifyTable(const CertifyReport& report);
nlohmann::ordered_json CertifyJson(const CertifyReport& report);
// Divergence and disagreement by position, in prefill and in decode mode, and retrieval by
// distance.
std::string CertifySvg(const CertifyReport& report);

}  // namespace kvasir
