// Line charts as SVG 1.1 text: a grid of panels over one logarithmic x axis. No fonts, scripts or
// style sheets from elsewhere; the greys and the series' colours are read on white as on black.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvasir {

struct ChartPoint {
  double x = 0, y = 0;    // not finite: left out, and the line is broken there
  bool at_least = false;  // the true value is y or more: drawn hollow
};

struct ChartSeries {
  size_t colour = 0;    // index; the same in all panels
  bool dashed = false;  // and without markers
  std::string name;     // shown when a pointer rests on it
  std::vector<ChartPoint> points;
};

struct ChartPanel {
  std::string title;
  std::string unit;
  bool log_y = false;
  double y_most = 0;     // linear: the axis ends here if greater than 0, else above the data
  double reference = 0;  // a dotted line, if greater than 0
  std::string reference_name;
  std::vector<ChartSeries> series;
};

struct Chart {
  std::string title, subtitle;
  std::string x_label;
  std::vector<std::string> legend;  // name of each colour
  std::string legend_note;
  std::vector<ChartPanel> panels;  // two in a row
};

constexpr size_t kChartColours = 8;  // a colour index beyond begins again

// Well-formed XML whatever the names hold; without any data, panels with bare axes.
std::string RenderSvg(const Chart& chart);

// Round numbers for an axis from 0 to at least `most`, 3 to 6 of them; the last is the axis' end.
std::vector<double> LinearTicks(double most);
// Powers of ten, with 2 and 5 times them where the range is short; first and last enclose the
// range.
std::vector<double> LogTicks(double least, double most);

}  // namespace kvasir
