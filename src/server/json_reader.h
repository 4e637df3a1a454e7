// JSON from outside, with limits. Keeps the order of members (chat templates print tools and
// arguments in it).
//
// Strict RFC 8259: UTF-8 only, no lone surrogates, no raw control characters, nothing after the
// value. A member given twice has its last value. Numbers that no double holds (1e999) are an error
// of the field they stand in.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int32_t depth_max = 64;         // arrays and objects inside each other
  size_t values_max = 2'000'000;  // values, members of objects counted once
};

// kInvalidArgument: one line with the byte offset, or the name of the top-level member (field()).
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Compact text. Bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string DumpJson(const Json& value);

}  // namespace kvasir
