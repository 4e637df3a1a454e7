#include "engine/batch_builder.h"

#include <algorithm>

namespace kvasir {

void BuildBatch(const ScheduledBatch& plan, const std::vector<LiveRequest*>& live,
                BuiltBatch& out) {
  ForwardBatch& forward = out.forward;
  forward.tokens.clear();
  forward.positions.clear();
  forward.spans.clear();
  forward.logit_rows.clear();
  forward.slot_copies = plan.slot_copies;
  out.tasks.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const ScheduledItem& item = plan.items[i];
    const Sequence& sequence = *item.sequence;
    const LiveRequest& request = *live[i];
    ForwardSpan span;
    span.block_table = sequence.kv.table();
    span.position = item.first;
    span.count = item.count;
    span.first_row = static_cast<int32_t>(forward.tokens.size());
    span.slot = sequence.slot;
    const int32_t wanted_from =
        request.prompt_logprobs ? request.prompt_rows_done : sequence.prompt_tokens;
    for (int32_t k = 0; k < item.count; ++k) {
      const int32_t position = item.first + k;
      const bool last = item.samples && k + 1 == item.count;
      const bool prompt = position >= wanted_from && position + 1 < sequence.prompt_tokens;
      const bool samples = last && request.sampling.max_tokens > 0;
      if (samples || (prompt && !last)) {
        forward.logit_rows.push_back(span.first_row + k);
        out.tasks.push_back({static_cast<int32_t>(i), position, samples});
      }
      forward.tokens.push_back(sequence.tokens[static_cast<size_t>(position)]);
      forward.positions.push_back(position);
    }
    forward.spans.push_back(span);
  }
}

}  // namespace kvasir
