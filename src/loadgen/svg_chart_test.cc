#include "loadgen/svg_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/hash.h"
#include "loadgen/sweep_plot.h"

namespace kvasir {
namespace {

// "" if `text` is one well-formed element, else what is wrong. Knows what XML without a document
// type knows: tags, attributes in double quotes, the five entities.
std::string XmlFault(const std::string& text) {
  std::vector<std::string> open;
  bool root_closed = false;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '<') {
      if (text[at] == '>') return "a bare >";
      if (open.empty() && !std::isspace(static_cast<unsigned char>(text[at])))
        return "text outside";
      if (text[at] == '&') {
        const std::string rest = text.substr(at, 6);
        if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;") &&
            !rest.starts_with("&quot;")) {
          return "a bare &";
        }
      }
      ++at;
      continue;
    }
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (root_closed) return "more than one element";
    if (tag.find('<') != std::string::npos) return "< in a tag";
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + tag;
      open.pop_back();
      root_closed = open.empty();
      continue;
    }
    const bool empty = tag.ends_with('/');
    if (empty) tag.pop_back();
    const size_t name_end = tag.find(' ');
    std::string attributes = name_end == std::string::npos ? "" : tag.substr(name_end);
    while (!attributes.empty()) {
      const size_t equals = attributes.find("=\"");
      const size_t quote = equals == std::string::npos ? equals : attributes.find('"', equals + 2);
      if (attributes[0] != ' ' || quote == std::string::npos) return "attributes " + attributes;
      if (attributes.substr(1, equals - 1).find_first_of(" \"=") != std::string::npos) {
        return "attribute name in " + attributes;
      }
      attributes.erase(0, quote + 1);
    }
    if (!empty) open.push_back(tag.substr(0, name_end));
  }
  return root_closed ? "" : "not closed";
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(XmlFault, SeesFaults) {
  EXPECT_EQ(XmlFault("<a b=\"c\"><d/>&amp;x</a>\n"), "");
  for (const char* bad : {"", "<a>", "<a></b>", "<a/><b/>", "<a b=c></a>", "<a>&</a>",
                          "<a b=\"</a>", "x<a></a>", "<a></a>x", "<a b=\"1\"c=\"2\"></a>"}) {
    EXPECT_NE(XmlFault(bad), "") << bad;
  }
}

TEST(LinearTicks, EncloseFromZero) {
  const uint64_t seed = 5;
  Rng rng(seed);
  for (int round = 0; round < 2000; ++round) {
    const double most = std::pow(10.0, rng.Uniform() * 12 - 4);
    const std::vector<double> ticks = LinearTicks(most);
    ASSERT_GE(ticks.size(), 3U) << most;
    ASSERT_LE(ticks.size(), 6U) << most;
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), most * (1 - 1e-6));
    EXPECT_LT(ticks[ticks.size() - 2], most);
    for (size_t i = 1; i < ticks.size(); ++i) EXPECT_GT(ticks[i], ticks[i - 1]);
  }
  EXPECT_EQ(LinearTicks(100), (std::vector<double>{0, 25, 50, 75, 100}));
  EXPECT_EQ(LinearTicks(0).front(), 0);
}

TEST(LogTicks, EncloseTheRange) {
  const uint64_t seed = 6;
  Rng rng(seed);
  for (int round = 0; round < 2000; ++round) {
    const double least = std::pow(10.0, rng.Uniform() * 8 - 4);
    const double most = least * std::pow(10.0, rng.Uniform() * 6);
    const std::vector<double> ticks = LogTicks(least, most);
    ASSERT_GE(ticks.size(), 2U) << least << " " << most;
    ASSERT_LE(ticks.size(), 8U) << least << " " << most;
    EXPECT_LE(ticks.front(), least * (1 + 1e-6));
    EXPECT_GE(ticks.back(), most * (1 - 1e-6));
    for (size_t i = 1; i < ticks.size(); ++i) EXPECT_GT(ticks[i], ticks[i - 1]);
  }
  EXPECT_EQ(LogTicks(7, 7).size(), 2U);  // an axis needs two ends
}

Chart OnePanel(std::vector<ChartPoint> points) {
  Chart chart;
  chart.title = "t";
  chart.legend = {"one"};
  ChartPanel panel;
  panel.title = "p";
  panel.unit = "ms";
  ChartSeries series;
  series.name = "the series";
  series.points = std::move(points);
  panel.series = {series};
  chart.panels = {panel};
  return chart;
}

TEST(RenderSvg, DrawsPointsAndBreaksAtMissingOnes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg = RenderSvg(
      OnePanel({{0.5, 1, false}, {1, 2, false}, {2, nan, false}, {4, 3, true}, {10, 4, false}}));
  EXPECT_EQ(XmlFault(svg), "") << svg;
  EXPECT_EQ(Count(svg, "<path"), 1U);
  EXPECT_EQ(Count(svg, "<circle"), 4U);
  EXPECT_EQ(Count(svg, "<circle cx=\"0.0\""), 0U);
  EXPECT_EQ(Count(svg, "r=\"4\" fill=\"none\""), 1U);  // the one that is a bound
  const size_t path = svg.find("<path d=\"");
  const std::string line = svg.substr(path + 9, svg.find('"', path + 9) - path - 9);
  EXPECT_EQ(Count(line, "M"), 2U) << line;
  EXPECT_EQ(Count(line, "L"), 2U) << line;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  for (const char* name : {">0.5<", ">10<", ">p, ms<", ">one<", ">the series<"}) {
    EXPECT_NE(svg.find(name), std::string::npos) << name;
  }
}

TEST(RenderSvg, NothingAndOddNames) {
  EXPECT_EQ(XmlFault(RenderSvg(Chart())), "");
  Chart odd = OnePanel({{1, 0, false}});
  odd.title = "a<b>&\"c'\n\x01\xff";
  odd.legend = {odd.title, std::string(300, 'x'), "]]>"};
  odd.panels[0].title = odd.panels[0].unit = odd.panels[0].series[0].name = odd.title;
  odd.panels[0].log_y = true;
  odd.panels[0].reference = 5;
  odd.panels[0].reference_name = "<";
  const std::string svg = RenderSvg(odd);
  EXPECT_EQ(XmlFault(svg), "") << svg;
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c'"), std::string::npos);
}

SweepReport Made(const std::string& label, double factor) {
  SweepReport report;
  report.label = label;
  report.model = "model";
  report.workload = "w";
  report.capacity = 4 * factor;
  report.slo_ttft_s = 1;
  report.slo_itl_s = 0.1;
  for (const double load : {10.0, 0.25, 1.0}) {  // the order does not matter
    SweepLevel level;
    level.load = load;
    level.window_s = 10;
    level.offered = static_cast<int64_t>(load * 40);
    level.completed = level.good = std::min<int64_t>(40, level.offered);
    level.refused_429 = level.offered - level.completed;
    level.out_tps = 100 * factor;
    level.ttft = {0.2 * factor, 2 * factor, false, load > 1};
    level.gap = {0.02, 0.04 * factor, false, false};
    report.levels.push_back(level);
  }
  return report;
}

TEST(SweepSvg, ManyRunsInOnePicture) {
  const std::string svg = SweepSvg({Made("reserve 0", 1), Made("reserve 0.1", 2)});
  EXPECT_EQ(XmlFault(svg), "") << svg;
  EXPECT_EQ(Count(svg, ">reserve 0<"), 1U);
  EXPECT_EQ(Count(svg, ">reserve 0.1<"), 1U);
  EXPECT_NE(svg.find("Load and latency, model"), std::string::npos);
  EXPECT_NE(svg.find("capacity 4 to 8 requests/s"), std::string::npos);
  // Two runs: p50 and p99 of two kinds of time, and three rates. No queue times were told.
  EXPECT_EQ(Count(svg, "<path"), 2U * (2 * 2 + 3));
  for (const char* what : {"reserve 0: p50", "reserve 0.1: p99", "Time to first token, ms",
                           "Between tokens of a running stream, ms", "Output, tokens/s",
                           "Goodput (both targets met), requests/s",
                           "Refused (429, 503), % of offered", "offered load"}) {
    EXPECT_NE(svg.find(what), std::string::npos) << what;
  }
  // Each line goes from left to right.
  for (size_t at = svg.find("<path d=\"M"); at != std::string::npos;
       at = svg.find("<path d=\"M", at + 1)) {
    double last = -1;
    const std::string path = svg.substr(at + 9, svg.find('"', at + 9) - at - 9);
    for (size_t i = 0; i < path.size(); ++i) {
      if (path[i] != 'M' && path[i] != 'L') continue;
      const double x = std::stod(path.substr(i + 1));
      EXPECT_GT(x, last) << path;
      last = x;
    }
  }
  EXPECT_NE(SweepSvg({Made("a", 1)}, "Own title").find(">Own title<"), std::string::npos);
  EXPECT_EQ(XmlFault(SweepSvg({})), "");
}

}  // namespace
}  // namespace kvasir
