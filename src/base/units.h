// Sizes as people write them: "512MiB", "4GiB", "1.5G", "65536".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

// Bytes. Suffixes B, K/KB/KiB, M.., G.., T.. (case-insensitive); all of them are powers of 1024 as
// in llama.cpp and vLLM. Fails on an empty string, a sign, an unknown suffix or more than 2^62
// bytes; `field` names the option.
Result<uint64_t> ParseSize(std::string_view text, std::string_view field);

// "96.3 MiB", "1.50 GiB", "512 B".
std::string FormatSize(uint64_t bytes);

}  // namespace kvasir
