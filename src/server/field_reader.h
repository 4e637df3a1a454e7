// FieldReader: the members of one JSON object with their types and ranges. Keeps the first error;
// null counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "server/json_reader.h"

namespace kvasir {

class FieldReader {
 public:
  // object outlives the reader. prefix stands before names in errors ("stream_options.").
  explicit FieldReader(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const Json* Find(std::string_view name) const;  // null if absent or null

  // Each returns true if the field was given and is right; *out is untouched otherwise.
  bool Int(std::string_view name, int64_t low, int64_t high, int64_t* out);
  bool Int32(std::string_view name, int64_t low, int64_t high, int32_t* out);
  // low_open: low itself is not allowed.
  bool Number(std::string_view name, double low, double high, float* out, bool low_open = false);
  bool Bool(std::string_view name, bool* out);
  bool String(std::string_view name, size_t bytes_max, std::string* out);
  // Token ids from 0 to vocab - 1.
  bool Tokens(std::string_view name, int32_t vocab, size_t count_max, std::vector<TokenId>* out);
  // A list of non-empty strings; one_ok: a single string is a list of one.
  bool Strings(std::string_view name, size_t count_max, size_t bytes_max, bool one_ok,
               std::vector<std::string>* out);

  void Fail(std::string_view name, const std::string& message);
  // What the reader of a member said, whose message names the member in full.
  void FailWith(const Status& inner, std::string_view name);
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string prefix_;
  Status status_;
};

// A JSON number that is a whole number of int64 (5 and 5.0, not 5.5, true, "5").
std::optional<int64_t> ExactInt(const Json& value);
// For messages: the value in short, control characters gone.
std::string Describe(const Json& value);

}  // namespace kvasir
