#include "loadgen/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace kvasir {
namespace {

constexpr const char* kColours[kChartColours] = {"#3f88c5", "#e07a1f", "#2a9d6f", "#c0508f",
                                                 "#8a6fd1", "#b58a00", "#d0453a", "#3aa6b0"};
constexpr const char* kText = "#737d87";  // at least 3.9 : 1 on white and on black
constexpr const char* kGrid = "#8a949e";

constexpr double kWidth = 960, kMargin = 24, kPanelWidth = 444, kPanelHeight = 236, kGap = 24;
constexpr double kPlotLeft = 56, kPlotTop = 30, kPlotRight = 8, kPlotBottom = 40;

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += byte < 0x20 ? ' ' : '?';  // what is not ASCII may be broken UTF-8
    } else {
      out += c;
    }
  }
  return out;
}

std::string Fixed(double value) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string Number(double value) {
  char text[48];
  if (value >= 1e6) {
    std::snprintf(text, sizeof(text), "%gM", value / 1e6);
  } else if (value >= 1e3) {
    std::snprintf(text, sizeof(text), "%gk", value / 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%g", value);
  }
  return text;
}

std::string TextAt(double x, double y, const char* anchor, int size, const std::string& text,
                   const char* more = "") {
  return "<text x=\"" + Fixed(x) + "\" y=\"" + Fixed(y) + "\" text-anchor=\"" + anchor +
         "\" font-size=\"" + std::to_string(size) + "\"" + more + ">" + Escaped(text) + "</text>\n";
}

std::string LineFromTo(double x1, double y1, double x2, double y2, const char* style) {
  return "<line x1=\"" + Fixed(x1) + "\" y1=\"" + Fixed(y1) + "\" x2=\"" + Fixed(x2) + "\" y2=\"" +
         Fixed(y2) + "\" " + style + "/>\n";
}

// Maps [first, last] to [from, to], evenly or by the logarithm; what is outside goes to the edge.
struct Axis {
  double first = 0, last = 1, from = 0, to = 1;
  bool log = false;
  double At(double value) const {
    const double low = log ? std::log(first) : first;
    const double high = log ? std::log(last) : last;
    const double v = log ? std::log(std::max(value, first)) : value;
    return from + (to - from) * std::clamp((v - low) / (high - low), 0.0, 1.0);
  }
};

bool Drawable(const ChartPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && point.x > 0;
}

// All x values that occur.
std::vector<double> XValues(const Chart& chart) {
  std::vector<double> values;
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartSeries& series : panel.series) {
      for (const ChartPoint& point : series.points) {
        if (Drawable(point)) values.push_back(point.x);
      }
    }
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<double> YTicks(const ChartPanel& panel) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  const auto see = [&](double y) {
    if (!std::isfinite(y) || y <= 0) return;
    least = std::min(least, y);
    most = std::max(most, y);
  };
  for (const ChartSeries& series : panel.series) {
    for (const ChartPoint& point : series.points) see(point.y);
  }
  see(panel.reference);
  if (!panel.log_y) return LinearTicks(panel.y_most > 0 ? panel.y_most : most * 1.02);
  if (most == 0) return LogTicks(1, 10);
  return LogTicks(std::max(least, most * 1e-5), most);
}

class Painter {
 public:
  explicit Painter(const Chart& chart) : chart_(chart), xs_(XValues(chart)) {}

  std::string Run() {
    const double top = Head();
    const size_t rows = (chart_.panels.size() + 1) / 2;
    for (size_t i = 0; i < chart_.panels.size(); ++i) {
      const double left = kMargin + static_cast<double>(i % 2) * (kPanelWidth + kGap);
      const size_t row = i / 2;
      Panel(chart_.panels[i], left, top + static_cast<double>(row) * kPanelHeight);
    }
    const double height = top + static_cast<double>(rows) * kPanelHeight + 8;
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + Fixed(kWidth) + " " +
           Fixed(height) + "\" width=\"" + Fixed(kWidth) + "\" height=\"" + Fixed(height) +
           "\" font-family=\"sans-serif\" fill=\"" + kText + "\">\n<title>" +
           Escaped(chart_.title) + "</title>\n" + out_ + "</svg>\n";
  }

 private:
  // Title, subtitle and legend. Returns where the panels begin.
  double Head() {
    out_ += TextAt(kMargin, 30, "start", 18, chart_.title, " font-weight=\"bold\"");
    out_ += TextAt(kMargin, 50, "start", 12, chart_.subtitle);
    double x = kMargin, y = 74;
    for (size_t i = 0; i < chart_.legend.size(); ++i) {
      // No font is at hand to measure with; letters of 12 px are about 7 px wide.
      const double width = 34 + 7 * static_cast<double>(chart_.legend[i].size());
      if (x > kMargin && x + width > kWidth - kMargin) {
        x = kMargin;
        y += 18;
      }
      const std::string style = "stroke=\"" + std::string(Colour(i)) + "\" stroke-width=\"3\"";
      out_ += LineFromTo(x, y - 4, x + 20, y - 4, style.c_str());
      out_ += TextAt(x + 26, y, "start", 12, chart_.legend[i]);
      x += width + 10;
    }
    if (!chart_.legend_note.empty()) {
      const double width = 7 * static_cast<double>(chart_.legend_note.size());
      if (x > kMargin && x + width > kWidth - kMargin) y += 18;
      out_ += TextAt(kWidth - kMargin, y, "end", 12, chart_.legend_note);
    }
    return y + 14;
  }

  static const char* Colour(size_t index) { return kColours[index % kChartColours]; }

  void Panel(const ChartPanel& panel, double left, double top) {
    const std::vector<double> ticks = YTicks(panel);
    Axis y{panel.log_y ? ticks.front() : 0, ticks.back(), top + kPanelHeight - kPlotBottom,
           top + kPlotTop, panel.log_y};
    Axis x{1, 10, left + kPlotLeft + 10, left + kPanelWidth - kPlotRight - 10, true};
    if (!xs_.empty()) {
      x.first = xs_.front();
      x.last = xs_.back() > xs_.front() ? xs_.back() : xs_.front() * 10;
    }
    out_ += "<g>\n" + TextAt(left + kPlotLeft, top + 18, "start", 13,
                             panel.title + ", " + panel.unit, " font-weight=\"bold\"");
    YAxis(ticks, y, left);
    XAxis(x, left, top);
    if (panel.reference > 0) {
      const double at = y.At(panel.reference);
      out_ += LineFromTo(left + kPlotLeft, at, left + kPanelWidth - kPlotRight, at,
                         "stroke=\"#737d87\" stroke-width=\"1.2\" stroke-dasharray=\"1.5 3\"");
      const double text_at = at < top + kPlotTop + 14 ? at + 12 : at - 4;
      out_ += TextAt(left + kPlotLeft + 4, text_at, "start", 10, panel.reference_name);
    }
    for (const ChartSeries& series : panel.series) Series(series, x, y);
    out_ += "</g>\n";
  }

  void YAxis(const std::vector<double>& ticks, const Axis& y, double left) {
    for (const double tick : ticks) {
      out_ += LineFromTo(left + kPlotLeft, y.At(tick), left + kPanelWidth - kPlotRight, y.At(tick),
                         (std::string("stroke=\"") + kGrid + "\" stroke-opacity=\"0.28\"").c_str());
      out_ += TextAt(left + kPlotLeft - 6, y.At(tick) + 4, "end", 11, Number(tick));
    }
  }

  void XAxis(const Axis& x, double left, double top) {
    const double bottom = top + kPanelHeight - kPlotBottom;
    out_ += LineFromTo(left + kPlotLeft, bottom, left + kPanelWidth - kPlotRight, bottom,
                       (std::string("stroke=\"") + kGrid + "\"").c_str());
    double free_from = 0;
    for (const double value : xs_) {
      const double at = x.At(value);
      out_ +=
          LineFromTo(at, bottom, at, bottom + 4, (std::string("stroke=\"") + kGrid + "\"").c_str());
      if (at < free_from) continue;
      out_ += TextAt(at, bottom + 16, "middle", 11, Number(value));
      free_from = at + 26;
    }
    out_ += TextAt(left + (kPlotLeft + kPanelWidth - kPlotRight) / 2, bottom + 31, "middle", 11,
                   chart_.x_label);
  }

  void Series(const ChartSeries& series, const Axis& x, const Axis& y) {
    std::string path, markers;
    bool pen_down = false;
    for (const ChartPoint& point : series.points) {
      if (!Drawable(point)) {
        pen_down = false;
        continue;
      }
      const std::string at_x = Fixed(x.At(point.x)), at_y = Fixed(y.At(point.y));
      path += (pen_down ? "L" : "M") + at_x + " " + at_y;
      pen_down = true;
      if (series.dashed && !point.at_least) continue;
      const std::string fill = point.at_least ? "none" : Colour(series.colour);
      markers += "<circle cx=\"" + at_x + "\" cy=\"" + at_y + "\" r=\"" +
                 (point.at_least ? "4" : "3") + "\" fill=\"" + fill + "\" stroke=\"" +
                 Colour(series.colour) + "\" stroke-width=\"1.5\"/>\n";
    }
    if (path.empty()) return;
    out_ += "<g><title>" + Escaped(series.name) + "</title>\n<path d=\"" + path +
            "\" fill=\"none\" stroke=\"" + Colour(series.colour) + "\" stroke-width=\"2\"" +
            (series.dashed ? " stroke-dasharray=\"5 4\"" : "") + " stroke-linejoin=\"round\"/>\n" +
            markers + "</g>\n";
  }

  const Chart& chart_;
  std::vector<double> xs_;
  std::string out_;
};

}  // namespace

std::vector<double> LinearTicks(double most) {
  if (!std::isfinite(most) || most <= 0) most = 1;
  const double rough = most / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto count = static_cast<int>(std::ceil(most / step - 1e-9));
  for (int i = 0; i <= count; ++i) ticks.push_back(step * i);
  return ticks;
}

std::vector<double> LogTicks(double least, double most) {
  const int first = static_cast<int>(std::floor(std::log10(least) + 1e-9));
  const int last = static_cast<int>(std::ceil(std::log10(most) - 1e-9));
  std::vector<double> fine;
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const double factor : {1.0, 2.0, 5.0}) fine.push_back(factor * std::pow(10, exponent));
  }
  // From the last one not above the range to the first one not below it.
  const auto above = std::upper_bound(fine.begin(), fine.end(), least * (1 + 1e-9));
  const auto begin = above == fine.begin() ? above : above - 1;
  auto end = std::lower_bound(fine.begin(), fine.end(), most * (1 - 1e-9));
  if (end == begin) ++end;
  std::vector<double> ticks(begin, end + 1);
  if (ticks.size() <= 7) return ticks;
  const double low = ticks.front(), high = ticks.back();
  const int stride = std::max(1, (last - first + 5) / 6);
  ticks = {low};
  for (int exponent = first; exponent < last; exponent += stride) {
    const double tick = std::pow(10, exponent);
    const double place = std::log(tick / low) / std::log(high / low);
    if (place > 0.1 && place < 0.9) ticks.push_back(tick);  // room for the text
  }
  ticks.push_back(high);
  return ticks;
}

std::string RenderSvg(const Chart& chart) {
  return Painter(chart).Run();
}

}  // namespace kvasir
