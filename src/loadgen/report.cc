#include "loadgen/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string Number(double value, const char* format) {
  if (!std::isfinite(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

nlohmann::ordered_json Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * 1e6) / 1e6;
}

void Pad(std::string* line, const std::string& cell, size_t width) {
  if (cell.size() < width) line->append(width - cell.size(), ' ');
  line->append(cell);
  line->push_back(' ');
}

nlohmann::ordered_json SummaryJson(const Summary& s) {
  nlohmann::ordered_json out;
  out["name"] = s.name;
  out["reqs"] = s.requests;
  out["ok"] = s.ok;
  out["not_sent"] = s.not_sent;
  out["errors"] = s.errors;
  if (!s.first_error.empty()) out["first_error"] = s.first_error;
  const std::pair<const char*, double> numbers[] = {{"wall", s.wall},
                                                    {"ttft_p50", s.ttft_p50},
                                                    {"ttft_p95", s.ttft_p95},
                                                    {"ttft_p99", s.ttft_p99},
                                                    {"ttft_max", s.ttft_max},
                                                    {"itl_p50", s.itl_p50},
                                                    {"itl_p99", s.itl_p99},
                                                    {"e2e_p50", s.e2e_p50},
                                                    {"e2e_p95", s.e2e_p95},
                                                    {"e2e_p99", s.e2e_p99},
                                                    {"decode_tps_p50", s.decode_tps_p50},
                                                    {"out_tps", s.out_tps},
                                                    {"prompt_tps", s.prompt_tps}};
  for (const auto& [key, value] : numbers) out[key] = Rounded(value);
  out["prompt_tokens"] = s.prompt_tokens;
  out["output_tokens"] = s.output_tokens;
  out["cached"] = s.cached_tokens;
  if (s.hot_ok > 0) {
    out["hot"] = {{"ok", s.hot_ok},
                  {"ttft_p50", Rounded(s.hot_ttft_p50)},
                  {"ttft_p99", Rounded(s.hot_ttft_p99)},
                  {"prompt_tokens", s.hot_prompt_tokens},
                  {"cached", s.hot_cached_tokens}};
  }
  return out;
}

}  // namespace

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return kNan;
  const auto rank = static_cast<size_t>(std::max(0.0, p * static_cast<double>(values.size())));
  const size_t index = std::min(values.size() - 1, rank);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

Summary Summarize(std::string name, const std::vector<Outcome>& outcomes, double wall_s) {
  Summary s;
  s.name = std::move(name);
  s.requests = static_cast<int64_t>(outcomes.size());
  s.wall = wall_s;
  std::vector<double> ttft, hot_ttft, gaps, total, rates;
  for (const Outcome& o : outcomes) {
    if (!o.ok()) {
      ++s.errors[o.error];
      if (s.first_error.empty()) s.first_error = o.error + ": " + o.detail;
      continue;
    }
    ++s.ok;
    s.prompt_tokens += o.prompt_tokens;
    s.output_tokens += o.output_tokens;
    s.cached_tokens += o.cached_tokens;
    ttft.push_back(Seconds(o.token_ns.front() - o.start_ns));
    if (o.hot) {
      ++s.hot_ok;
      s.hot_prompt_tokens += o.prompt_tokens;
      s.hot_cached_tokens += o.cached_tokens;
      hot_ttft.push_back(ttft.back());
    }
    total.push_back(Seconds(o.end_ns - o.start_ns));
    for (size_t i = 1; i < o.token_ns.size(); ++i) {
      gaps.push_back(Seconds(o.token_ns[i] - o.token_ns[i - 1]));
    }
    if (o.token_ns.size() > 1) {
      const double span = Seconds(o.token_ns.back() - o.token_ns.front());
      rates.push_back(static_cast<double>(o.output_tokens - 1) / std::max(1e-9, span));
    }
  }
  s.ttft_p50 = Percentile(ttft, 0.50);
  s.ttft_p95 = Percentile(ttft, 0.95);
  s.ttft_p99 = Percentile(ttft, 0.99);
  s.ttft_max = Percentile(ttft, 1.0);
  s.hot_ttft_p50 = Percentile(hot_ttft, 0.50);
  s.hot_ttft_p99 = Percentile(hot_ttft, 0.99);
  s.itl_p50 = Percentile(gaps, 0.50);
  s.itl_p99 = Percentile(gaps, 0.99);
  s.e2e_p50 = Percentile(total, 0.50);
  s.e2e_p95 = Percentile(total, 0.95);
  s.e2e_p99 = Percentile(total, 0.99);
  s.decode_tps_p50 = Percentile(rates, 0.50);
  s.out_tps = wall_s > 0 ? static_cast<double>(s.output_tokens) / wall_s : kNan;
  s.prompt_tps = wall_s > 0 ? static_cast<double>(s.prompt_tokens) / wall_s : kNan;
  return s;
}

std::string TableHeader() {
  return "                                             TTFT ms              inter-token ms  "
         "end-to-end s  tokens/s\n"
         "workload                             ok/all     p50     p95     p99     p50     p99     "
         "p50     p99"
         "  output  prompt   cached";
}

std::string TableRow(const Summary& s) {
  std::string line = s.name.substr(0, 34);
  line.append(35 - std::min<size_t>(34, line.size()), ' ');
  Pad(&line, std::to_string(s.ok) + "/" + std::to_string(s.requests), 7);
  for (const double value : {s.ttft_p50, s.ttft_p95, s.ttft_p99})
    Pad(&line, Number(value * 1e3, "%.1f"), 7);
  for (const double value : {s.itl_p50, s.itl_p99}) Pad(&line, Number(value * 1e3, "%.2f"), 7);
  for (const double value : {s.e2e_p50, s.e2e_p99}) Pad(&line, Number(value, "%.3f"), 7);
  for (const double value : {s.out_tps, s.prompt_tps}) Pad(&line, Number(value, "%.1f"), 7);
  Pad(&line, std::to_string(s.cached_tokens), 8);
  while (line.ends_with(' ')) line.pop_back();
  if (!s.errors.empty() || s.not_sent > 0) {
    line += "\n    errors:";
    for (const auto& [kind, count] : s.errors)
      line += " " + std::to_string(count) + " x " + kind + ";";
    if (s.not_sent > 0)
      line += " " + std::to_string(s.not_sent) + " not sent (too many in flight);";
    if (!s.first_error.empty()) line += " first: " + s.first_error;
  }
  return line;
}

std::string ReportJson(const std::vector<Summary>& summaries, const std::string& url,
                       const std::string& model, uint64_t seed) {
  nlohmann::ordered_json out;
  out["url"] = url;
  out["model"] = model;
  out["seed"] = seed;
  out["workloads"] = nlohmann::ordered_json::array();
  for (const Summary& summary : summaries) out["workloads"].push_back(SummaryJson(summary));
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kvasir
