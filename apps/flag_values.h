// Checks of flag values that several commands share.
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir {

CLI::Validator NotEmpty();  // "" is not the same as leaving the flag out
// A whole number from 0 to 2^64 - 1 in decimal digits.
CLI::Validator SeedRange();

}  // namespace kvasir
