#include "server/field_reader.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace kvasir {
namespace {

std::string FormatNumber(double value) {
  char text[32];
  const auto [end, error] =
      std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  return error == std::errc() ? std::string(text, end) : std::to_string(value);
}

}  // namespace

std::optional<int64_t> ExactInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53: whole doubles beyond may be rounded ones
  const double number = value.get<double>();
  if (!(std::abs(number) <= kExact) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::string Describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    default:
      return DumpJson(value);
  }
}

const Json* FieldReader::Find(std::string_view name) const {
  const auto found = object_.find(name);
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

void FieldReader::Fail(std::string_view name, const std::string& message) {
  if (!status_.ok()) return;
  const std::string field = prefix_ + std::string(name);
  status_ = InvalidArgument(field + ": " + message, field);
}

void FieldReader::FailWith(const Status& inner, std::string_view name) {
  if (!status_.ok()) return;
  status_ = Status(inner.code(), inner.message(), prefix_ + std::string(name));
}

bool FieldReader::Int(std::string_view name, int64_t low, int64_t high, int64_t* out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  const std::optional<int64_t> number = ExactInt(*value);
  if (!number || *number < low || *number > high) {
    Fail(name, "must be a whole number from " + std::to_string(low) + " to " +
                   std::to_string(high) + ", not " + Describe(*value));
    return false;
  }
  *out = *number;
  return true;
}

bool FieldReader::Int32(std::string_view name, int64_t low, int64_t high, int32_t* out) {
  int64_t number = 0;
  if (!Int(name, low, high, &number)) return false;
  *out = static_cast<int32_t>(number);
  return true;
}

bool FieldReader::Number(std::string_view name, double low, double high, float* out,
                         bool low_open) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  const float narrow = static_cast<float>(number);
  // The narrow value is checked too: 1e-60 is above zero as a double only.
  if (!(number >= low && number <= high) || (low_open && !(narrow > static_cast<float>(low)))) {
    Fail(name, "must be a number " + std::string(low_open ? "above " : "from ") +
                   FormatNumber(low) + " to " + FormatNumber(high) + ", not " + Describe(*value));
    return false;
  }
  *out = narrow;
  return true;
}

bool FieldReader::Bool(std::string_view name, bool* out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    Fail(name, "must be true or false, not " + Describe(*value));
    return false;
  }
  *out = value->get<bool>();
  return true;
}

bool FieldReader::String(std::string_view name, size_t bytes_max, std::string* out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_string()) {
    Fail(name, "must be a string, not " + Describe(*value));
    return false;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > bytes_max) {
    Fail(name, "must have at most " + std::to_string(bytes_max) + " bytes, not " +
                   std::to_string(text.size()));
    return false;
  }
  *out = text;
  return true;
}

bool FieldReader::Tokens(std::string_view name, int32_t vocab, size_t count_max,
                         std::vector<TokenId>* out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_array() || value->size() > count_max) {
    Fail(name, "must be an array of at most " + std::to_string(count_max) + " token ids");
    return false;
  }
  std::vector<TokenId> tokens;
  tokens.reserve(value->size());
  for (const Json& item : *value) {
    const std::optional<int64_t> number = ExactInt(item);
    if (!number || *number < 0 || *number >= vocab) {
      Fail(name, "token ids go from 0 to " + std::to_string(vocab - 1) + ", not " + Describe(item));
      return false;
    }
    tokens.push_back(static_cast<TokenId>(*number));
  }
  *out = std::move(tokens);
  return true;
}

bool FieldReader::Strings(std::string_view name, size_t count_max, size_t bytes_max, bool one_ok,
                          std::vector<std::string>* out) {
  const Json* value = Find(name);
  if (value == nullptr) return false;
  std::vector<std::string> strings;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) {
      Fail(name, std::string("must be ") + (one_ok ? "a string or " : "") +
                     "an array of strings, not " + Describe(item));
      return false;
    }
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty() || text.size() > bytes_max) {
      Fail(name, "its strings have 1 to " + std::to_string(bytes_max) + " bytes, not " +
                     std::to_string(text.size()));
      return false;
    }
    strings.push_back(text);
    return true;
  };
  if (!value->is_array()) {
    if (!one_ok || !add(*value)) {
      Fail(name, "must be an array of strings, not " + Describe(*value));
      return false;
    }
  } else if (value->size() > count_max) {
    Fail(name, "must have at most " + std::to_string(count_max) + " strings, not " +
                   std::to_string(value->size()));
    return false;
  } else {
    for (const Json& item : *value)
      if (!add(item)) return false;
  }
  *out = std::move(strings);
  return true;
}

}  // namespace kvasir
