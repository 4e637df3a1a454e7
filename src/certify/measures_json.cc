// Measures as JSON and back. A certificate may come from anywhere: nothing is taken unchecked.
#include <cmath>
#include <limits>
#include <string>

#include "certify/measures.h"

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Reads fields one after the other; the first that is missing or impossible is remembered.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}
  double Number(const char* key) {
    if (!Has(key) || !object_[key].is_number()) return Bad(key);
    const double value = object_[key].get<double>();
    return std::isfinite(value) && value >= 0 ? value : Bad(key);
  }
  int32_t Int(const char* key) {
    if (!Has(key) || !object_[key].is_number_integer()) return static_cast<int32_t>(Bad(key));
    const auto value = object_[key].get<int64_t>();
    const bool fits = value >= 0 && value <= std::numeric_limits<int32_t>::max();
    return static_cast<int32_t>(fits ? static_cast<double>(value) : Bad(key));
  }
  std::string Text(const char* key) {
    if (Has(key) && object_[key].is_string()) return object_[key].get<std::string>();
    Bad(key);
    return "";
  }
  const json& List(const char* key) {
    static const json empty = json::array();
    if (Has(key) && object_[key].is_array()) return object_[key];
    Bad(key);
    return empty;
  }
  const json& Object(const char* key) {
    static const json empty = json::object();
    if (Has(key) && object_[key].is_object()) return object_[key];
    Bad(key);
    return empty;
  }
  Spread GetSpread(const char* key) {
    Reader in(Object(key));
    const Spread spread = in.ThisSpread();
    Take(in);
    return spread;
  }
  Spread ThisSpread() {
    Spread spread;
    spread.count = Int("positions");
    spread.broken = Int("not_finite");
    spread.mean = Number("kld_mean");
    spread.p99 = Number("kld_p99");
    spread.max = Number("kld_max");
    spread.top1 = Number("top1");
    return spread;
  }
  void Take(const Reader& other) {
    if (bad_.empty()) bad_ = other.bad_;
  }
  Status status() const {
    return bad_.empty() ? Status::Ok() : DataLoss("measures: '" + bad_ + "' is missing or broken");
  }

 private:
  bool Has(const char* key) const { return object_.is_object() && object_.contains(key); }
  double Bad(const char* key) {
    if (bad_.empty()) bad_ = key;
    return 0;
  }
  const json& object_;
  std::string bad_;
};

}  // namespace

ordered_json SpreadToJson(const Spread& spread) {
  return {{"positions", spread.count}, {"not_finite", spread.broken}, {"kld_mean", spread.mean},
          {"kld_p99", spread.p99},     {"kld_max", spread.max},       {"top1", spread.top1}};
}

Result<Spread> SpreadFromJson(const json& object) {
  Reader in(object);
  const Spread spread = in.ThisSpread();
  KVASIR_RETURN_IF_ERROR(in.status());
  return spread;
}

ordered_json MeasuresToJson(const Measures& measures) {
  ordered_json buckets = ordered_json::array(), cells = ordered_json::array();
  for (const Bucket& bucket : measures.buckets) {
    buckets.push_back({{"first", bucket.first},
                       {"last", bucket.last},
                       {"prefill", SpreadToJson(bucket.prefill)},
                       {"decode", SpreadToJson(bucket.decode)}});
  }
  for (const RetrievalCell& cell : measures.retrieval) {
    cells.push_back({{"kind", cell.kind},
                     {"distance", cell.distance},
                     {"counted", cell.counted},
                     {"right", cell.right}});
  }
  const GreedyMeasure& greedy = measures.greedy;
  return {{"prefill", SpreadToJson(measures.prefill)},
          {"decode", SpreadToJson(measures.decode)},
          {"decode_over_prefill", measures.ratio},
          {"buckets", buckets},
          {"greedy",
           {{"prompts", greedy.prompts},
            {"tokens", greedy.tokens},
            {"median", greedy.median},
            {"p10", greedy.p10},
            {"same", greedy.same}}},
          {"retrieval", cells}};
}

Result<Measures> MeasuresFromJson(const json& object) {
  Reader in(object);
  Measures measures;
  measures.prefill = in.GetSpread("prefill");
  measures.decode = in.GetSpread("decode");
  measures.ratio = in.Number("decode_over_prefill");
  for (const json& item : in.List("buckets")) {
    Reader bucket(item);
    measures.buckets.push_back({bucket.Int("first"), bucket.Int("last"),
                                bucket.GetSpread("prefill"), bucket.GetSpread("decode")});
    in.Take(bucket);
  }
  Reader greedy(in.Object("greedy"));
  measures.greedy = {greedy.Int("prompts"), greedy.Int("tokens"), greedy.Int("median"),
                     greedy.Int("p10"), greedy.Int("same")};
  in.Take(greedy);
  for (const json& item : in.List("retrieval")) {
    Reader cell(item);
    measures.retrieval.push_back(
        {cell.Text("kind"), cell.Int("distance"), cell.Int("counted"), cell.Int("right")});
    in.Take(cell);
  }
  KVASIR_RETURN_IF_ERROR(in.status());
  if (measures.buckets.empty() || measures.prefill.count == 0) {
    return DataLoss("buckets: nothing was measured");
  }
  return measures;
}

}  // namespace kvasir
