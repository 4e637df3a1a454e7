// How names and numbers of a hostile file are shown in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir::internal {

// At most 80 bytes, everything that is not printable ASCII as \xNN: a message stays one line and
// harmless in a terminal.
std::string Printable(std::string_view raw);

// "FILE: offset N: field 'x': what". `field` is shown as it is: pass Printable names.
std::string GgufComplaint(const std::string& file, uint64_t offset, const std::string& field,
                          const std::string& what);

}  // namespace kvasir::internal
