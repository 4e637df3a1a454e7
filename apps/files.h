// Files that flags name: read in full, and looked at before a long run whether they can be written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

inline constexpr uint64_t kInputFileBytesMax = uint64_t{1} << 30;

// The whole file; pipes work too. kInvalidArgument "--text book: why" for one that cannot be
// opened or read, for folders, and for more than bytes_max bytes. flag: "--text".
Result<std::string> ReadInputFile(const std::string& path, std::string_view flag,
                                  uint64_t bytes_max = kInputFileBytesMax);

// kInvalidArgument if the path cannot be written. Changes nothing in a file that is there, and
// leaves none behind that was not.
Status CheckWritable(const std::string& path, std::string_view flag);

}  // namespace kvasir
