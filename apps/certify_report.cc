#include "apps/certify_report.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "loadgen/svg_chart.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;
using Line = std::vector<std::string>;

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[200];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// Columns as wide as their widest cell, the first to the left, the others to the right.
std::string Table(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines[0].size());
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), ' ');
      row += i == 0 ? line[i] + space : "  " + space + line[i];
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

// The bucket of the highest mean, of either mode.
double WorstBucket(const Measures& measures) {
  double worst = 0;
  for (const Bucket& bucket : measures.buckets) {
    for (const Spread* spread : {&bucket.prefill, &bucket.decode}) {
      if (spread->count >= kBucketPositions) worst = std::max(worst, spread->mean);
    }
  }
  return worst;
}

Line Row(const Certificate& certificate, double f16_bytes) {
  const Measures& m = certificate.measures;
  const std::string median = m.greedy.median >= m.greedy.tokens ? Format(">=%d", m.greedy.tokens)
                                                                : Format("%d", m.greedy.median);
  const std::string retrieval =
      m.questions() == 0 ? "-"
                         : Format("%.0f/%.0f", m.recall() * static_cast<double>(m.questions()),
                                  static_cast<double>(m.questions()));
  const std::optional<KvQuality> quality = certificate.quality();
  return {certificate.name(),
          Format("%.0f", certificate.bytes_per_token),
          Format("%.2f", certificate.bytes_per_token / f16_bytes),
          Format("%.2g", m.prefill.mean),
          Format("%.2g", m.prefill.p99),
          Format("%.2g", m.prefill.max),
          Format("%.2f %%", m.prefill.top1 * 100),
          Format("%.2g", WorstBucket(m)),
          m.decode.count > 0 ? Format("%.3f", m.ratio) : "-",
          median,
          Format("%d", m.greedy.p10),
          retrieval,
          !certificate.control_failed ? "VOID"
          : quality.has_value()       ? std::string(KvQualityName(*quality))
                                      : "fails"};
}

// By position, the buckets of one mode.
ChartPanel PositionPanel(const CertifyReport& report, const char* title, const char* unit,
                         const std::function<const Spread&(const Bucket&)>& of,
                         const std::function<double(const Spread&)>& value) {
  ChartPanel panel;
  panel.title = title;
  panel.unit = unit;
  for (size_t i = 0; i < report.certificates.size(); ++i) {
    ChartSeries series;
    series.colour = i;
    series.name = report.certificates[i].name() + ": " + title;
    for (const Bucket& bucket : report.certificates[i].measures.buckets) {
      const Spread& spread = of(bucket);
      if (spread.count == 0) continue;
      series.points.push_back({static_cast<double>(bucket.last) + 1, value(spread)});
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

ChartPanel RetrievalPanel(const CertifyReport& report) {
  ChartPanel panel;
  panel.title = "Retrieval, by distance in tokens";
  panel.unit = "% of what f16 finds";
  panel.y_most = 100;
  for (size_t i = 0; i < report.certificates.size(); ++i) {
    std::vector<RetrievalCell> cells;
    for (const RetrievalCell& cell : report.certificates[i].measures.retrieval) {
      if (cell.counted > 0) cells.push_back(cell);
    }
    std::stable_sort(cells.begin(), cells.end(),
                     [](const auto& a, const auto& b) { return a.distance < b.distance; });
    ChartSeries series;
    series.colour = i;
    series.name = report.certificates[i].name() + ": retrieval";
    for (const RetrievalCell& cell : cells) {
      series.points.push_back(
          {static_cast<double>(cell.distance), 100.0 * cell.right / cell.counted});
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace

std::string CertifyTable(const CertifyReport& report) {
  if (report.certificates.empty()) return "";
  const CertifySettings& settings = report.certificates[0].settings;
  std::string text = "KV formats for " + report.model + " against K and V in " + settings.base +
                     ": texts up to " + std::to_string(settings.max_len) + " tokens (" +
                     settings.text + "), precision " + settings.precision +
                     (settings.quick ? ", quick" : "") + "\nKLD in nats\n\n";
  std::vector<Line> lines = {{"K/V", "B/token", "of f16", "KLD mean", "p99", "max", "top-1",
                              "worst bucket", "decode/prefill", "greedy median", "p10", "retrieval",
                              "good for"}};
  for (const Certificate& certificate : report.certificates) {
    lines.push_back(Row(certificate, report.f16_bytes_per_token));
  }
  text += Table(lines) + "\n";
  for (const Certificate& certificate : report.certificates) {
    text += certificate.name() + ": " + certificate.Verdict() + "\n";
  }
  const Certificate& any = report.certificates[0];
  text += Format("control (K and V of two bits): mean KLD %.2g, top-1 %.1f %%: ", any.control_mean,
                 any.control_top1 * 100);
  text += any.control_failed
              ? "fails every budget, as it must\n"
              : "PASSES a budget. This model hardly needs its cache, or the texts do not show that "
                "it does: nothing here is certified\n";
  return text;
}

Json CertifyJson(const CertifyReport& report) {
  Json list = Json::array();
  for (const Certificate& certificate : report.certificates) {
    list.push_back(CertificateToJson(certificate));
  }
  return {{"model", report.model},
          {"fingerprint", Format("%016" PRIx64, report.fingerprint)},
          {"f16_bytes_per_token", report.f16_bytes_per_token},
          {"certificates", std::move(list)}};
}

std::string CertifySvg(const CertifyReport& report) {
  Chart chart;
  chart.title = "KV formats, " + report.model;
  chart.x_label = "tokens: end of the range of positions, or distance";
  if (!report.certificates.empty()) {
    const CertifySettings& settings = report.certificates[0].settings;
    chart.subtitle = "against K and V in " + settings.base + ", texts up to " +
                     std::to_string(settings.max_len) + " tokens, precision " + settings.precision;
  }
  for (const Certificate& certificate : report.certificates) {
    const std::optional<KvQuality> quality = certificate.quality();
    chart.legend.push_back(certificate.name() +
                           (quality.has_value() ? " (" + std::string(KvQualityName(*quality)) + ")"
                                                : " (no budget kept)"));
  }
  const auto prefill = [](const Bucket& bucket) -> const Spread& { return bucket.prefill; };
  const auto decode = [](const Bucket& bucket) -> const Spread& { return bucket.decode; };
  const auto mean = [](const Spread& spread) { return spread.mean; };
  const auto p99 = [](const Spread& spread) { return spread.p99; };
  const auto other = [](const Spread& spread) { return (1 - spread.top1) * 100; };
  const auto divergence = [&](const char* title, const auto& of, const auto& value, double limit) {
    ChartPanel panel = PositionPanel(report, title, "nats", of, value);
    panel.log_y = true;
    panel.reference = limit;
    panel.reference_name = "balanced";
    chart.panels.push_back(std::move(panel));
  };
  const KvBudget& budget = BudgetOf(KvQuality::kBalanced);
  divergence("Mean divergence, prefill mode", prefill, mean, budget.bucket_mean);
  divergence("Mean divergence, decode mode", decode, mean, budget.bucket_mean);
  divergence("p99 of divergence, prefill mode", prefill, p99, budget.p99);
  chart.panels.push_back(
      PositionPanel(report, "Likeliest token is another, prefill mode", "%", prefill, other));
  chart.panels.push_back(RetrievalPanel(report));
  return RenderSvg(chart);
}

}  // namespace kvasir
