#include "certify/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace kvasir {
namespace {

constexpr KvBudget kStrictBudget = {0.001, 0.002, 0.02, 1, 0.99, 1.25, 46, 0.98};
constexpr KvBudget kBalancedBudget = {0.008, 0.016, 0.12, 2, 0.95, 1.25, 9, 0.95};
constexpr KvBudget kSmallBudget = {0.04, 0.08, 0.6, 4, 0.85, 1.25, 3, 0.85};

std::string Text(const char* format, double value, double limit) {
  char text[160];
  std::snprintf(text, sizeof(text), format, value, limit);
  return text;
}

// Two digits, more where those of the value would be the limit's.
std::string Beyond(const std::string& what, double value, double limit) {
  const auto number = [](double x, int digits) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.*g", digits, x);
    return std::string(text);
  };
  int digits = 2;
  while (digits < 9 && number(value, digits) == number(limit, digits)) ++digits;
  return what + " " + number(value, digits) + " > " + number(limit, digits);
}

class Judge {
 public:
  explicit Judge(const KvBudget& budget) : budget_(budget) {}

  void Mode(const char* mode, const Spread& spread) {
    const std::string in = std::string(" (") + mode + ")";
    if (spread.broken > 0) {
      found_.push_back(std::to_string(spread.broken) + " positions gave no finite logits" + in);
    }
    AtMost("mean KLD", spread.mean, budget_.mean, in);
    AtMost("p99 KLD", spread.p99, budget_.p99, in);
    AtMost("largest KLD", spread.max, budget_.max, in);
    // Less than chance explains, two standard errors of as many positions.
    const auto n = static_cast<double>(spread.count);
    const double slack = 2 * std::sqrt(budget_.top1 * (1 - budget_.top1) / std::max(1.0, n));
    if (!(spread.top1 >= budget_.top1 - slack)) {
      AtLeast("top-1 %.2f %% < %.4g %%", spread.top1 * 100, budget_.top1 * 100, in);
    }
  }
  void OneBucket(const Bucket& bucket) {
    for (const Spread* spread : {&bucket.prefill, &bucket.decode}) {
      if (spread->count < kBucketPositions) continue;
      const std::string at = " at positions " + std::to_string(bucket.first) + "-" +
                             std::to_string(bucket.last) +
                             (spread == &bucket.decode ? " (decode)" : " (prefill)");
      AtMost("mean KLD", spread->mean, budget_.bucket_mean, at);
    }
  }
  void Rest(const Measures& measures) {
    AtMost("decode / prefill", measures.ratio, budget_.ratio, "");
    const GreedyMeasure& greedy = measures.greedy;
    if (greedy.prompts > 0) {
      // A text too short to show the limit cannot fail it.
      const int least = std::min(budget_.greedy_median, greedy.tokens);
      AtLeast("greedy texts part at token %.0f (median) < %.0f", greedy.median, least, "");
    }
    if (measures.questions() >= kQuestions) {
      AtLeast("retrieval %.1f %% < %.4g %%", measures.recall() * 100, budget_.recall * 100, "");
    }
  }
  std::vector<std::string> found() && { return std::move(found_); }

 private:
  // Written so that NaN falls short.
  void AtMost(const char* what, double value, double limit, const std::string& where) {
    if (!(value <= limit)) found_.push_back(Beyond(what, value, limit) + where);
  }
  void AtLeast(const char* format, double value, double limit, const std::string& where) {
    if (!(value >= limit)) found_.push_back(Text(format, value, limit) + where);
  }
  const KvBudget& budget_;
  std::vector<std::string> found_;
};

}  // namespace

std::string_view KvQualityName(KvQuality quality) {
  switch (quality) {
    case KvQuality::kStrict:
      return "strict";
    case KvQuality::kBalanced:
      return "balanced";
    case KvQuality::kSmall:
      break;
  }
  return "small";
}

Result<KvQuality> ParseKvQuality(std::string_view name, std::string_view field) {
  for (const KvQuality quality : kKvQualities) {
    if (name == KvQualityName(quality)) return quality;
  }
  return InvalidArgument(std::string(field) + ": must be strict, balanced or small",
                         std::string(field));
}

const KvBudget& BudgetOf(KvQuality quality) {
  switch (quality) {
    case KvQuality::kStrict:
      return kStrictBudget;
    case KvQuality::kBalanced:
      return kBalancedBudget;
    case KvQuality::kSmall:
      break;
  }
  return kSmallBudget;
}

std::vector<std::string> Shortfalls(const Measures& measures, KvQuality quality) {
  Judge judge(BudgetOf(quality));
  if (measures.prefill.count > measures.prefill.broken) {
    judge.Mode("prefill", measures.prefill);
    if (measures.decode.count > 0) judge.Mode("decode", measures.decode);
    for (const Bucket& bucket : measures.buckets) judge.OneBucket(bucket);
    judge.Rest(measures);
  } else {
    return {"nothing was measured"};
  }
  return std::move(judge).found();
}

std::optional<KvQuality> BestQuality(const Measures& measures) {
  for (const KvQuality quality : kKvQualities) {
    if (Shortfalls(measures, quality).empty()) return quality;
  }
  return std::nullopt;
}

}  // namespace kvasir
