#include "calibrate/paged_views.h"

namespace kvasir {

std::vector<PagedKv> PagedViews(const KvLayout& layout, std::byte* base) {
  std::vector<PagedKv> views;
  for (const LayerSlot& slot : layout.layers()) {
    PagedKv view;
    view.base = base;
    view.block_stride = layout.block_bytes();
    view.k_offset = slot.k_offset;
    view.v_offset = slot.v_offset;
    view.block_tokens = layout.block_tokens();
    view.kv_heads = slot.spec.kv_heads;
    view.k_dim = slot.spec.k_dim;
    view.v_dim = slot.spec.v_dim;
    view.k_type = slot.k_type;
    view.v_type = slot.v_type;
    views.push_back(view);
  }
  return views;
}

}  // namespace kvasir
