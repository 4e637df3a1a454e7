// How much a cache format may change a model's answers: the budgets of `--kv-quality`, and whether
// measures keep them. docs/certify.md says where the numbers come from.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "certify/measures.h"

namespace kvasir {

enum class KvQuality : uint8_t { kStrict, kBalanced, kSmall };
inline constexpr KvQuality kKvQualities[] = {KvQuality::kStrict, KvQuality::kBalanced,
                                             KvQuality::kSmall};  // the hardest first

std::string_view KvQualityName(KvQuality quality);  // "strict" "balanced" "small"
Result<KvQuality> ParseKvQuality(std::string_view name, std::string_view field);

struct KvBudget {
  double mean;         // KLD over all positions, nats; in prefill and in decode mode
  double bucket_mean;  // of each bucket with kBucketPositions positions or more
  double p99;
  double max;         // of a single position
  double top1;        // share, at least, less two standard errors of the positions seen
  double ratio;       // decode mode over prefill mode
  int greedy_median;  // first differing token, at least
  double recall;      // share of retrieval questions, at least
};
const KvBudget& BudgetOf(KvQuality quality);

inline constexpr int kBucketPositions = 64;  // a bucket with fewer is shown and not judged
inline constexpr int kQuestions = 20;        // with fewer, retrieval is not judged

// What goes beyond the budget, one short phrase each ("mean KLD 0.0057 > 0.001"); empty: it passes.
std::vector<std::string> Shortfalls(const Measures& measures, KvQuality quality);

// The best quality that the measures keep; nothing if they fail even `small`.
std::optional<KvQuality> BestQuality(const Measures& measures);

}  // namespace kvasir
