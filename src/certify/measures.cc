#include "certify/measures.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr double kPerNat = 1e9;
constexpr double kIndistinct = 1e-6;  // nats

// Collects positions; sums are of integers, so their order does not matter.
class Collector {
 public:
  void Add(int64_t kld, bool same) {
    ++count_;
    if (kld == TextScores::kNotFinite) return;
    klds_.push_back(kld);
    same_ += same ? 1 : 0;
  }
  Spread Sum() {
    Spread spread;
    spread.count = count_;
    spread.broken = count_ - static_cast<int64_t>(klds_.size());
    if (klds_.empty()) return spread;
    std::sort(klds_.begin(), klds_.end());
    const auto n = static_cast<double>(klds_.size());
    double total = 0;
    for (const int64_t kld : klds_) total += static_cast<double>(kld);
    spread.mean = total / n / kPerNat;
    const size_t rank = (klds_.size() * 99 + 99) / 100;  // at least 99 % do not exceed it
    spread.p99 = static_cast<double>(klds_[rank - 1]) / kPerNat;
    spread.max = static_cast<double>(klds_.back()) / kPerNat;
    spread.top1 = static_cast<double>(same_) / n;
    return spread;
  }

 private:
  std::vector<int64_t> klds_;
  int64_t count_ = 0, same_ = 0;
};

size_t BucketOf(const std::vector<Bucket>& buckets, int32_t position) {
  const auto it = std::partition_point(
      buckets.begin(), buckets.end(), [&](const Bucket& bucket) { return bucket.last < position; });
  return static_cast<size_t>(std::min(it, buckets.end() - 1) - buckets.begin());
}

GreedyMeasure SumUpGreedy(std::vector<int32_t> first, int32_t tokens) {
  GreedyMeasure greedy;
  greedy.prompts = static_cast<int32_t>(first.size());
  greedy.tokens = tokens;
  if (first.empty()) return greedy;
  std::sort(first.begin(), first.end());
  greedy.median = first[(first.size() - 1) / 2];
  greedy.p10 = first[(first.size() + 9) / 10 - 1];
  greedy.same = static_cast<int32_t>(std::count(first.begin(), first.end(), tokens));
  return greedy;
}

// Of the sequences read in both modes.
double Ratio(std::span<const MeasuredPart> parts) {
  struct Sums {
    double kld = 0, count = 0;
  };
  std::map<int, Sums> modes[2];  // prefill, decode; by sequence
  for (const MeasuredPart& part : parts) {
    for (const TextScores& scores : part.result.text) {
      Sums& sums = modes[part.mode == MeasuredPart::Mode::kDecode ? 1 : 0][scores.sequence];
      for (const int64_t kld : scores.kld) {
        if (kld == TextScores::kNotFinite) continue;
        sums.kld += static_cast<double>(kld) / kPerNat;
        ++sums.count;
      }
    }
  }
  Sums prefill, decode;
  for (const auto& [sequence, sums] : modes[1]) {
    const auto other = modes[0].find(sequence);
    if (other == modes[0].end()) continue;
    decode.kld += sums.kld;
    decode.count += sums.count;
    prefill.kld += other->second.kld;
    prefill.count += other->second.count;
  }
  if (prefill.count == 0 || decode.count == 0) return 0;
  return (decode.kld / decode.count + kIndistinct) / (prefill.kld / prefill.count + kIndistinct);
}

}  // namespace

int64_t Measures::questions() const {
  int64_t sum = 0;
  for (const RetrievalCell& cell : retrieval) sum += cell.counted;
  return sum;
}

double Measures::recall() const {
  int64_t right = 0;
  for (const RetrievalCell& cell : retrieval) right += cell.right;
  const int64_t asked = questions();
  return asked == 0 ? 1 : static_cast<double>(right) / static_cast<double>(asked);
}

std::vector<Bucket> PositionBuckets(int32_t max_len) {
  KVASIR_CHECK(max_len > 0);
  std::vector<Bucket> buckets;
  int32_t first = 0;
  for (int64_t end = 128; first < max_len; end = end == 128 ? 512 : end * 2) {
    const auto last = static_cast<int32_t>(std::min<int64_t>(end, max_len) - 1);
    buckets.push_back({first, last, {}, {}});
    first = last + 1;
  }
  return buckets;
}

Measures SumUp(std::span<const MeasuredPart> parts, int32_t max_len, int32_t greedy_tokens) {
  Measures measures;
  measures.buckets = PositionBuckets(max_len);
  std::vector<Collector> prefill(measures.buckets.size()), decode(measures.buckets.size());
  Collector all_prefill, all_decode;
  std::vector<int32_t> first_difference;
  std::map<std::pair<std::string, int>, RetrievalCell> cells;
  for (const MeasuredPart& part : parts) {
    const bool in_decode = part.mode == MeasuredPart::Mode::kDecode;
    for (const TextScores& scores : part.result.text) {
      for (size_t i = 0; i < scores.kld.size(); ++i) {
        const size_t bucket = BucketOf(measures.buckets, static_cast<int32_t>(i));
        const bool same = scores.same_top[i] == '1';
        (in_decode ? decode : prefill)[bucket].Add(scores.kld[i], same);
        (in_decode ? all_decode : all_prefill).Add(scores.kld[i], same);
      }
    }
    first_difference.insert(first_difference.end(), part.result.first_difference.begin(),
                            part.result.first_difference.end());
    for (const RetrievalCell& cell : part.result.cells) {
      RetrievalCell& sum =
          cells.try_emplace({cell.kind, cell.distance}, RetrievalCell{cell.kind, cell.distance})
              .first->second;
      sum.counted += cell.counted;
      sum.right += cell.right;
    }
  }
  for (size_t i = 0; i < measures.buckets.size(); ++i) {
    measures.buckets[i].prefill = prefill[i].Sum();
    measures.buckets[i].decode = decode[i].Sum();
  }
  measures.prefill = all_prefill.Sum();
  measures.decode = all_decode.Sum();
  measures.ratio = Ratio(parts);
  measures.greedy = SumUpGreedy(std::move(first_difference), greedy_tokens);
  for (auto& [key, cell] : cells) measures.retrieval.push_back(std::move(cell));
  return measures;
}

}  // namespace kvasir
