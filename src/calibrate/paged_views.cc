#include "calibrate/paged_views.h"

#include "base/check.h"

namespace kvasir {

std::vector<PagedKv> PagedViews(const KvLayout& layout, std::byte* base,
                                const KeyConditioning& keys) {
  KVASIR_CHECK(keys.empty() || keys.centre.size() == layout.layers().size());
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
    if (!keys.empty() && KvTypeIsInteger(slot.k_type)) {
      view.k_centre = keys.centre[views.size()];
      view.k_balance = keys.balance[views.size()];
    }
    views.push_back(view);
  }
  return views;
}

}  // namespace kvasir
