#include "model/config_reader.h"

#include <algorithm>

namespace kvasir::internal {

int ConfigReader::Int(std::string_view key, int64_t low, int64_t high) {
  if (ok() && file_.Find(Key(key)) == nullptr)
    Fail(DataLoss(file_.Complaint(Key(key), "the key is missing")));
  return IntOr(key, low, high, static_cast<int>(low));
}

int ConfigReader::IntOr(std::string_view key, int64_t low, int64_t high, int fallback) {
  if (!ok()) return fallback;
  auto value = file_.Int(Key(key), low, high);
  if (!value.ok()) {
    Fail(value.status());
    return fallback;
  }
  return static_cast<int>(value->value_or(fallback));
}

double ConfigReader::FloatOr(std::string_view key, double fallback) {
  if (!ok()) return fallback;
  auto value = file_.Float(Key(key));
  if (!value.ok()) {
    Fail(value.status());
    return fallback;
  }
  return value->value_or(fallback);
}

std::string ConfigReader::StringOr(std::string_view key, std::string fallback) {
  if (!ok()) return fallback;
  auto value = file_.String(Key(key));
  if (!value.ok()) {
    Fail(value.status());
    return fallback;
  }
  return value->has_value() ? std::string(**value) : fallback;
}

int ConfigReader::PerLayerOr(std::string_view key, int64_t low, int64_t high, int layers,
                             int fallback) {
  const GgufKey* found = file_.Find(Key(key));
  const auto* array = found == nullptr ? nullptr : std::get_if<GgufArray>(&found->value);
  if (!ok() || array == nullptr) return IntOr(key, low, high, fallback);
  const auto complain = [&](const std::string& what) { return file_.Complaint(Key(key), what); };
  switch (array->element) {
    case GgufType::kString:
    case GgufType::kF32:
    case GgufType::kF64:
    case GgufType::kArray:
      Fail(DataLoss(complain("an array of integers is due")));
      return fallback;
    default:
      break;
  }
  if (array->count != static_cast<uint64_t>(layers)) {
    Fail(DataLoss(complain("array of " + std::to_string(array->count) + " where the model has " +
                           std::to_string(layers) + " layers")));
    return fallback;
  }
  const std::vector<int64_t> values = array->Integers();
  for (const int64_t value : values) {
    if (value < low || value > high) {
      Fail(DataLoss(complain(std::to_string(value) + " (limit " + std::to_string(low) + " to " +
                             std::to_string(high) + ")")));
      return fallback;
    }
  }
  const auto other =
      std::find_if(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; });
  if (other != values.end()) {
    Fail(Unimplemented(complain("layers that differ are not served (" + std::to_string(values[0]) +
                                " and " + std::to_string(*other) + ")")));
    return fallback;
  }
  return static_cast<int>(values[0]);  // layers >= 1
}

void ConfigReader::RefuseUnlessNeutral(std::string_view key, double neutral,
                                       std::string_view meaning) {
  const GgufKey* found = file_.Find(Key(key));
  if (!ok() || found == nullptr) return;
  double value = neutral + 1;
  if (const auto* u = std::get_if<uint64_t>(&found->value)) value = static_cast<double>(*u);
  if (const auto* i = std::get_if<int64_t>(&found->value)) value = static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&found->value)) value = *d;
  if (const auto* b = std::get_if<bool>(&found->value)) value = *b ? 1 : 0;
  if (value != neutral) {
    Fail(Unimplemented(file_.Complaint(Key(key), std::string(meaning) + " is not served")));
  }
}

}  // namespace kvasir::internal
