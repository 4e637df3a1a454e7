// A cache layout as the plain views that kernels take.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/attention.h"
#include "kvcache/kv_layout.h"
#include "model/forward.h"

namespace kvasir {

// One view per layer; base: the first byte of block 0. keys: constants for layers whose K is kept
// in i8 or i4; the views point into it.
std::vector<PagedKv> PagedViews(const KvLayout& layout, std::byte* base,
                                const KeyConditioning& keys);

}  // namespace kvasir
