#include "loadgen/sweep_plot.h"

#include <algorithm>
#include <cstdio>
#include <functional>

#include "loadgen/svg_chart.h"

namespace kvasir {
namespace {

using Reports = std::vector<SweepReport>;
using Value = std::function<ChartPoint(const SweepLevel&)>;

std::string LabelOf(const SweepReport& report) {
  return report.label.empty() ? report.model : report.label;
}

void AddSeries(ChartPanel* panel, const Reports& reports, bool dashed, const char* what,
               const Value& value) {
  for (size_t i = 0; i < reports.size(); ++i) {
    ChartSeries series;
    series.colour = i;
    series.dashed = dashed;
    series.name = LabelOf(reports[i]) + ": " + what;
    for (const SweepLevel& level : reports[i].levels) {
      ChartPoint point = value(level);
      point.x = level.load;
      series.points.push_back(point);
    }
    std::sort(series.points.begin(), series.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    panel->series.push_back(std::move(series));
  }
}

// p50 dashed, p99 solid, in milliseconds.
ChartPanel TimePanel(const Reports& reports, const char* title, double slo_s,
                     const std::function<const Quantiles&(const SweepLevel&)>& of) {
  ChartPanel panel;
  panel.title = title;
  panel.unit = "ms";
  panel.log_y = true;
  panel.reference = slo_s * 1e3;
  panel.reference_name = "target";
  AddSeries(&panel, reports, true, "p50", [&](const SweepLevel& level) {
    return ChartPoint{0, of(level).p50 * 1e3, of(level).p50_at_least};
  });
  AddSeries(&panel, reports, false, "p99", [&](const SweepLevel& level) {
    return ChartPoint{0, of(level).p99 * 1e3, of(level).p99_at_least};
  });
  return panel;
}

ChartPanel RatePanel(const Reports& reports, const char* title, const char* unit,
                     const std::function<double(const SweepLevel&)>& of) {
  ChartPanel panel;
  panel.title = title;
  panel.unit = unit;
  AddSeries(&panel, reports, false, title, [&](const SweepLevel& level) {
    return ChartPoint{0, of(level), false};
  });
  return panel;
}

std::string Subtitle(const Reports& reports) {
  const SweepReport& first = reports.front();
  double least = first.capacity, most = first.capacity;
  for (const SweepReport& report : reports) {
    least = std::min(least, report.capacity);
    most = std::max(most, report.capacity);
  }
  char text[256];
  if (most > least * 1.001) {
    std::snprintf(text, sizeof(text), "%s; capacity %.3g to %.3g requests/s",
                  first.workload.c_str(), least, most);
  } else {
    std::snprintf(text, sizeof(text), "%s; capacity %.3g requests/s", first.workload.c_str(), most);
  }
  return text;
}

}  // namespace

std::string SweepSvg(const Reports& reports, const std::string& title) {
  Chart chart;
  chart.title = title;
  chart.x_label = "offered load, times the capacity";
  if (reports.empty()) return RenderSvg(chart);
  if (title.empty()) chart.title = "Load and latency, " + reports.front().model;
  chart.subtitle = Subtitle(reports);
  chart.legend_note = "times: p99 solid, p50 dashed; hollow: at least";
  for (const SweepReport& report : reports) chart.legend.push_back(LabelOf(report));
  const SweepReport& first = reports.front();
  chart.panels.push_back(
      TimePanel(reports, "Time to first token", first.slo_ttft_s,
                [](const SweepLevel& level) -> const Quantiles& { return level.ttft; }));
  chart.panels.push_back(
      TimePanel(reports, "Between tokens of a running stream", first.slo_itl_s,
                [](const SweepLevel& level) -> const Quantiles& { return level.gap; }));
  chart.panels.push_back(RatePanel(reports, "Output", "tokens/s",
                                   [](const SweepLevel& level) { return level.out_tps; }));
  ChartPanel good = RatePanel(reports, "Goodput (both targets met)", "requests/s",
                              [](const SweepLevel& level) { return level.good_rps(); });
  good.reference = first.capacity;
  good.reference_name = "capacity";
  chart.panels.push_back(std::move(good));
  ChartPanel refused =
      RatePanel(reports, "Refused (429, 503)", "% of offered",
                [](const SweepLevel& level) { return level.refused_share() * 100; });
  refused.y_most = 100;
  chart.panels.push_back(std::move(refused));
  chart.panels.push_back(
      TimePanel(reports, "Wait for the first step", 0,
                [](const SweepLevel& level) -> const Quantiles& { return level.queue; }));
  return RenderSvg(chart);
}

}  // namespace kvasir
