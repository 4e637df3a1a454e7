#include "apps/flag_values.h"

#include <charconv>
#include <cstdint>
#include <string>

namespace kvasir {

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("must not be empty; leave it out for the default")
                            : std::string();
      },
      "", "not empty");
}

CLI::Validator SeedRange() {
  return CLI::Validator(
      [](const std::string& text) {
        uint64_t seed = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, seed);
        if (error == std::errc() && rest == end) return std::string();
        return text + " is not a whole number from 0 to 18446744073709551615 (2^64 - 1)";
      },
      "", "seed");
}

}  // namespace kvasir
