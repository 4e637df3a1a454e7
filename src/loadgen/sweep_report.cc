#include "loadgen/sweep_report.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKind = "kvasir bench sweep";
constexpr int kVersion = 1;
constexpr size_t kLevelsMax = 1000;

Json Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * 1e6) / 1e6;
}

Json QuantilesJson(const Quantiles& q) {
  Json out = {{"p50", Rounded(q.p50)}, {"p99", Rounded(q.p99)}};
  if (q.p50_at_least) out["p50_at_least"] = true;
  if (q.p99_at_least) out["p99_at_least"] = true;
  return out;
}

Json LevelJson(const SweepLevel& level) {
  Json out = {{"load", level.load},
              {"rate", Rounded(level.rate)},
              {"window_s", Rounded(level.window_s)},
              {"offered", level.offered},
              {"completed", level.completed},
              {"unfinished", level.unfinished},
              {"refused_429", level.refused_429},
              {"refused_503", level.refused_503},
              {"refused_no_retry_after", level.refused_no_retry},
              {"errors", level.errors}};
  if (!level.first_refusal.empty()) out["first_refusal"] = level.first_refusal;
  if (!level.first_error.empty()) out["first_error"] = level.first_error;
  out["not_sent"] = level.not_sent;
  out["good"] = level.good;
  out["out_tps"] = Rounded(level.out_tps);
  out["ttft_s"] = QuantilesJson(level.ttft);
  out["inter_token_s"] = QuantilesJson(level.gap);
  out["queue_s"] = QuantilesJson(level.queue);
  out["prompt_tokens"] = level.prompt_tokens;
  out["cached_tokens"] = level.cached_tokens;
  if (level.hot_completed > 0) {
    out["hot"] = {{"completed", level.hot_completed}, {"ttft_s", QuantilesJson(level.hot_ttft)}};
  }
  out["send_lag_p99_s"] = Rounded(level.send_lag_p99);
  out["client_cpu"] = Rounded(level.client_cpu);
  out["open_max"] = level.open_max;
  out["server"] = level.server;
  return out;
}

// Reads members of an object that may be anything; the first fault stands.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  double Number(const char* key) {
    const auto it = Find(key);
    if (it == object_.end()) return 0;
    if (it->is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!it->is_number()) return Bad(key), 0;
    return it->get<double>();
  }
  int64_t Count(const char* key) {
    const auto it = Find(key);
    if (it == object_.end()) return 0;
    if (!it->is_number_integer() || it->get<int64_t>() < 0) return Bad(key), 0;
    return it->get<int64_t>();
  }
  std::string Text(const char* key) {
    const auto it = Find(key);
    if (it == object_.end()) return "";
    if (!it->is_string()) return Bad(key), "";
    return it->get<std::string>();
  }
  Quantiles ReadQuantiles(const char* key) {
    Quantiles q;
    const auto it = Find(key);
    if (it == object_.end()) return q;
    if (!it->is_object()) return Bad(key), q;
    Reader inner(*it);
    q.p50 = inner.Number("p50");
    q.p99 = inner.Number("p99");
    q.p50_at_least = it->contains("p50_at_least");
    q.p99_at_least = it->contains("p99_at_least");
    if (!inner.fault_.empty()) fault_ = inner.fault_;
    return q;
  }
  template <typename T>
  std::map<std::string, T> Map(const char* key) {
    std::map<std::string, T> out;
    const auto it = Find(key);
    if (it == object_.end()) return out;
    if (!it->is_object()) return Bad(key), out;
    for (const auto& [name, value] : it->items()) {
      const bool fits = std::is_integral_v<T> ? value.is_number_integer() : value.is_number();
      if (fits) out[name] = value.template get<T>();
    }
    return out;
  }
  bool Has(const char* key) const { return object_.is_object() && object_.contains(key); }
  Reader Inner(const char* key) { return Reader(object_.at(key)); }
  const std::string& fault() const { return fault_; }

 private:
  Json::const_iterator Find(const char* key) {
    if (!object_.is_object()) {
      fault_ = "no object";
      return object_.end();
    }
    const auto it = object_.find(key);
    if (it == object_.end()) Bad(key);
    return it;
  }
  void Bad(const char* key) {
    if (fault_.empty()) fault_ = std::string("'") + key + "' is missing or of the wrong kind";
  }

  const Json& object_;
  std::string fault_;
};

Result<SweepLevel> ParseLevel(const Json& json) {
  Reader in(json);
  SweepLevel level;
  level.load = in.Number("load");
  level.rate = in.Number("rate");
  level.window_s = in.Number("window_s");
  level.offered = in.Count("offered");
  level.completed = in.Count("completed");
  level.unfinished = in.Count("unfinished");
  level.refused_429 = in.Count("refused_429");
  level.refused_503 = in.Count("refused_503");
  level.refused_no_retry = in.Count("refused_no_retry_after");
  level.errors = in.Map<int64_t>("errors");
  if (in.Has("first_refusal")) level.first_refusal = in.Text("first_refusal");
  if (in.Has("first_error")) level.first_error = in.Text("first_error");
  level.not_sent = in.Count("not_sent");
  level.good = in.Count("good");
  level.out_tps = in.Number("out_tps");
  level.ttft = in.ReadQuantiles("ttft_s");
  level.gap = in.ReadQuantiles("inter_token_s");
  level.queue = in.ReadQuantiles("queue_s");
  level.prompt_tokens = in.Count("prompt_tokens");
  level.cached_tokens = in.Count("cached_tokens");
  if (in.Has("hot")) {
    Reader hot = in.Inner("hot");
    level.hot_completed = hot.Count("completed");
    level.hot_ttft = hot.ReadQuantiles("ttft_s");
  }
  level.send_lag_p99 = in.Number("send_lag_p99_s");
  level.client_cpu = in.Number("client_cpu");
  level.open_max = in.Count("open_max");
  level.server = in.Map<double>("server");
  if (!in.fault().empty()) return InvalidArgument("level: " + in.fault());
  if (!(level.load > 0) || level.load > 1e9) return InvalidArgument("level: 'load' out of range");
  return level;
}

std::string Cell(double value, const char* format, bool at_least = false) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return at_least ? std::string(">") + text : text;
}

void Pad(std::string* line, const std::string& cell, size_t width) {
  if (cell.size() < width) line->append(width - cell.size(), ' ');
  line->append(cell);
  line->push_back(' ');
}

constexpr size_t kWidths[] = {6, 8, 8, 8, 7, 8, 8, 9, 9, 8, 8, 9, 7};

}  // namespace

std::string SweepTableHeader() {
  const char* names[] = {"load",      "offered",  "accepted", "good",      "refused",
                         "out",       "ttft p50", "ttft p99", "token p50", "p99",
                         "queue p99", "lag p99",  "client"};
  const char* units[] = {"x",  "1/s", "1/s", "1/s", "%",  "tok/s", "ms",
                         "ms", "ms",  "ms",  "ms",  "ms", "cpu %"};
  std::string first, second;
  constexpr size_t kColumns = std::size(kWidths);
  static_assert(std::size(names) == kColumns && std::size(units) == kColumns);
  for (size_t i = 0; i < kColumns; ++i) {
    Pad(&first, names[i], kWidths[i]);
    Pad(&second, units[i], kWidths[i]);
  }
  return first + "\n" + second;
}

std::string SweepTableRow(const SweepLevel& s) {
  const std::string cells[] = {Cell(s.load, "%g"),
                               Cell(s.offered_rps(), "%.2f"),
                               Cell(s.PerSecond(s.accepted()), "%.2f"),
                               Cell(s.good_rps(), "%.2f"),
                               Cell(s.refused_share() * 100, "%.1f"),
                               Cell(s.out_tps, "%.1f"),
                               Cell(s.ttft.p50 * 1e3, "%.0f", s.ttft.p50_at_least),
                               Cell(s.ttft.p99 * 1e3, "%.0f", s.ttft.p99_at_least),
                               Cell(s.gap.p50 * 1e3, "%.2f"),
                               Cell(s.gap.p99 * 1e3, "%.2f"),
                               Cell(s.queue.p99 * 1e3, "%.0f"),
                               Cell(s.send_lag_p99 * 1e3, "%.2f"),
                               Cell(s.client_cpu * 100, "%.1f")};
  std::string line;
  for (size_t i = 0; i < std::size(cells); ++i) Pad(&line, cells[i], kWidths[i]);
  while (line.ends_with(' ')) line.pop_back();
  std::string more;
  const auto add = [&more](int64_t count, const std::string& what) {
    if (count > 0) more += (more.empty() ? "" : "; ") + std::to_string(count) + " " + what;
  };
  add(s.refused_429, "x 429");
  add(s.refused_503, "x 503");
  add(s.refused_no_retry, "of them without Retry-After");
  for (const auto& [kind, count] : s.errors) add(count, "x " + kind);
  add(s.unfinished, "unfinished at the end");
  add(s.not_sent, "not sent: too many connections");
  if (!more.empty()) line += "\n         of " + std::to_string(s.offered) + ": " + more;
  if (!s.first_refusal.empty()) line += "\n         first refusal: " + s.first_refusal;
  if (!s.first_error.empty()) line += "\n         first error: " + s.first_error;
  return line;
}

std::string SweepJson(const SweepReport& report) {
  Json out = {{"kind", kKind},
              {"version", kVersion},
              {"label", report.label},
              {"url", report.url},
              {"model", report.model},
              {"seed", report.seed},
              {"workload", report.workload},
              {"capacity_rps", Rounded(report.capacity)},
              {"capacity_measured", report.capacity_measured},
              {"slo_ttft_s", report.slo_ttft_s},
              {"slo_inter_token_s", report.slo_itl_s},
              {"levels", Json::array()}};
  for (const SweepLevel& level : report.levels) out["levels"].push_back(LevelJson(level));
  return out.dump(1, ' ', false, Json::error_handler_t::replace);
}

Result<SweepReport> ParseSweepJson(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  Reader in(json);
  if (!json.is_object() || in.Text("kind") != kKind) {
    return InvalidArgument("no report of kvasir bench --sweep");
  }
  if (in.Number("version") != kVersion) return InvalidArgument("report of an unknown version");
  SweepReport report;
  report.label = in.Text("label");
  report.url = in.Text("url");
  report.model = in.Text("model");
  report.seed =
      in.Has("seed") && json["seed"].is_number_unsigned() ? json["seed"].get<uint64_t>() : 0;
  report.workload = in.Text("workload");
  report.capacity = in.Number("capacity_rps");
  report.capacity_measured = in.Has("capacity_measured") && json["capacity_measured"] == true;
  report.slo_ttft_s = in.Number("slo_ttft_s");
  report.slo_itl_s = in.Number("slo_inter_token_s");
  if (!in.fault().empty()) return InvalidArgument("report: " + in.fault());
  if (!json.contains("levels") || !json["levels"].is_array() ||
      json["levels"].size() > kLevelsMax) {
    return InvalidArgument("report: 'levels' is missing or of the wrong kind");
  }
  for (const Json& one : json["levels"]) {
    KVASIR_ASSIGN_OR_RETURN(SweepLevel level, ParseLevel(one));
    report.levels.push_back(std::move(level));
  }
  return report;
}

}  // namespace kvasir
