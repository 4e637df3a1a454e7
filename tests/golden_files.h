// The files of tests/golden and the arithmetic the golden tests share. Formats:
// tools/make_goldens.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/sanitizer.h"

namespace kvasir::golden {

inline constexpr const char* kNoModel =
    "SKIPPED: the demo model is missing; run ./kvasir-quickstart --once or set "
    "KVASIR_DEMO_MODEL";

// $KVASIR_DEMO_MODEL, else the place where the set-up script puts it; nullopt if there is no such
// file.
inline std::optional<std::string> FindDemoModel() {
  std::string path;
  if (const char* named = std::getenv("KVASIR_DEMO_MODEL")) {
    path = named;
  } else {
    const char* data = std::getenv("XDG_DATA_HOME");
    const char* home = std::getenv("HOME");
    path =
        data != nullptr && *data != '\0' ? data : std::string(home ? home : "") + "/.local/share";
    path += "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

// Long texts run only without sanitizers, or with KVASIR_SLOW_TESTS=1.
inline bool SlowTestsWanted() {
  if (const char* wanted = std::getenv("KVASIR_SLOW_TESTS")) return std::string(wanted) != "0";
  return !kSanitized;
}

// One text of logits.bin or kld.bin.
struct GoldenText {
  std::string name;
  std::vector<int32_t> tokens, positions;
  size_t top = 0;
  std::vector<uint16_t> ids;     // [positions][top], best first
  std::vector<float> values;     // the logits of ids
  std::vector<float> logsumexp;  // [positions], over the whole vocabulary
  std::span<const uint16_t> Ids(size_t i) const { return {ids.data() + i * top, top}; }
  std::span<const float> Values(size_t i) const { return {values.data() + i * top, top}; }
};

namespace internal {

template <typename T>
std::vector<T> ReadArray(const std::string& bytes, const nlohmann::json& array, const char* type) {
  size_t count = 1;
  for (size_t extent : array.at("shape")) count *= extent;
  const size_t offset = array.at("offset");
  if (array.at("type") != type || offset + count * sizeof(T) > bytes.size()) {
    throw std::runtime_error("golden file: array " + array.at("name").get<std::string>() +
                             " is not as described");
  }
  std::vector<T> out(count);
  std::memcpy(out.data(), bytes.data() + offset, count * sizeof(T));
  return out;
}

}  // namespace internal

// Throws if the file is missing or not as described: a broken checkout, not a reason to skip.
inline std::vector<GoldenText> ReadGoldenTexts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error("cannot read " + path);
  const nlohmann::json header = nlohmann::json::parse(line);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::map<std::string, nlohmann::json> arrays;
  std::vector<std::string> names;
  for (const auto& array : header.at("arrays")) {
    const std::string name = array.at("name");
    arrays[name] = array;
    if (name.ends_with(".tokens")) names.push_back(name.substr(0, name.size() - 7));
  }
  std::vector<GoldenText> texts;
  for (const std::string& name : names) {
    GoldenText text;
    text.name = name;
    text.tokens = internal::ReadArray<int32_t>(bytes, arrays.at(name + ".tokens"), "i32");
    text.positions = internal::ReadArray<int32_t>(bytes, arrays.at(name + ".positions"), "i32");
    text.ids = internal::ReadArray<uint16_t>(bytes, arrays.at(name + ".ids"), "u16");
    text.values = internal::ReadArray<float>(bytes, arrays.at(name + ".values"), "f32");
    text.logsumexp = internal::ReadArray<float>(bytes, arrays.at(name + ".logsumexp"), "f32");
    text.top = text.ids.size() / text.positions.size();
    if (text.values.size() != text.ids.size() || text.logsumexp.size() != text.positions.size()) {
      throw std::runtime_error("golden file: sizes of " + name + " differ");
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

struct GreedyRow {
  std::string text;
  std::vector<int32_t> prompt, tokens;
  std::vector<float> gaps;  // best minus second logit of each step
};

inline std::vector<GreedyRow> ReadGreedyRows(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const nlohmann::json whole = nlohmann::json::parse(file);
  std::vector<GreedyRow> rows;
  for (const auto& row : whole.at("rows")) {
    rows.push_back({row.at("text"), row.at("prompt"), row.at("tokens"), row.at("gaps")});
  }
  return rows;
}

inline double LogSumExp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

inline int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// KL(oracle || got) over the whole vocabulary, estimated without bias from the kBest best tokens
// and a sample of the others drawn from the oracle's own distribution: sum of p (r - 1 - log r), r
// = q / p, whose every term is at least zero. `values`: the oracle's logits of `ids` (kld.bin).
inline constexpr size_t kBest = 24;
inline double EstimateKld(std::span<const uint16_t> ids, std::span<const float> values,
                          double logsumexp, std::span<const float> got) {
  const double got_logsumexp = LogSumExp(got);
  double kld = 0, drawn = 0, rest = 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double p_log = static_cast<double>(values[i]) - logsumexp;
    const double r_log = static_cast<double>(got[ids[i]]) - got_logsumexp - p_log;
    const double term = std::expm1(r_log) - r_log;
    if (i < kBest) {
      kld += std::exp(p_log) * term;
      rest -= std::exp(p_log);
    } else {
      drawn += term;
    }
  }
  return kld + std::max(rest, 0.0) * drawn / static_cast<double>(ids.size() - kBest);
}

}  // namespace kvasir::golden
