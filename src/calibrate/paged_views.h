// A cache layout as the plain views that kernels take.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/attention.h"
#include "kvcache/kv_layout.h"

namespace kvasir {

// One view per layer; base: the first byte of block 0.
std::vector<PagedKv> PagedViews(const KvLayout& layout, std::byte* base);

}  // namespace kvasir
