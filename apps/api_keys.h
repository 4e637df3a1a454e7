// Bearer tokens from flags and from a file.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kvasir {

// All keys given, and the non-empty lines of the file if its name is not "". kInvalidArgument for a
// file that cannot be read or holds none, and for keys that cannot stand in a header (empty,
// spaces, control characters).
Result<std::vector<std::string>> CollectApiKeys(std::vector<std::string> keys,
                                                const std::string& file);

}  // namespace kvasir
