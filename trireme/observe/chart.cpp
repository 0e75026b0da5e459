#include "trireme/observe/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace trireme {

namespace {

constexpr double width = 710, height = 300, left = 64, right = 220, top = 30, bottom = 44;

constexpr std::array colors = {"#1f6fb2", "#d1495b", "#2e8b57", "#b8860b", "#7b4fa3", "#3d9db3",
                               "#8c564b", "#e07b39", "#5b6b7a", "#a0529b", "#6b8e23", "#444444"};

const char* color_of(size_t number) { return colors[number % colors.size()]; }

// From values to places on the paper.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  bool logarithmic = false;
  std::vector<std::string> names;

  double warp(double value) const { return logarithmic ? std::log10(std::max(value, 1e-9)) : value; }
  double at(double value) const {
    const double part = (warp(value) - warp(low)) / std::max(1e-12, warp(high) - warp(low));
    return from + part * (to - from);
  }

  // Round numbers that lie inside.
  std::vector<double> ticks() const {
    std::vector<double> values;
    for (size_t i = 0; i < names.size(); ++i) values.push_back(static_cast<double>(i));
    if (!names.empty()) return values;
    if (logarithmic) {
      for (double power = std::pow(10, std::floor(std::log10(low))); power <= high * 1.0001; power *= 10) {
        for (double factor : {1.0, 2.0, 5.0}) {
          if (factor * power >= low * 0.9999 && factor * power <= high * 1.0001) values.push_back(factor * power);
        }
      }
      return values;
    }
    const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(std::max(raw, 1e-12))));
    const double step = raw / power < 1.5   ? power
                        : raw / power < 3.5 ? 2 * power
                        : raw / power < 7.5 ? 5 * power
                                            : 10 * power;
    for (double value = std::ceil(low / step) * step; value <= high + 1e-9 * step; value += step)
      values.push_back(value);
    return values;
  }
  std::string label(double tick) const {
    if (!names.empty()) return names[static_cast<size_t>(tick)];
    return std::abs(tick) < 1e-9 ? "0" : fmt::format("{:.4g}", tick);
  }
};

std::string open_svg(double w, double h) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" role=\"img\">\n", w, h, w,
                     h);
}

std::string text(double x, double y, const char* anchor, const std::string& words, const char* extra = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor, extra,
                     escape_html(words));
}

std::string draw_axes(const Axis& x, const Axis& y, const std::string& x_label, const std::string& y_label) {
  std::string out;
  for (double value : x.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n",
                       x.at(value), y.from, y.to);
    out += text(x.at(value), y.from + 15, "middle", x.label(value));
  }
  for (double value : y.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{1:.1f}\" y1=\"{0:.1f}\" x2=\"{2:.1f}\" y2=\"{0:.1f}\"/>\n",
                       y.at(value), x.from, x.to);
    out += text(x.from - 6, y.at(value) + 4, "end", y.label(value));
  }
  out += text((x.from + x.to) / 2, y.from + 34, "middle", x_label);
  out += fmt::format("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (y.from + y.to) / 2, escape_html(y_label));
  return out;
}

std::string draw_curve(const Curve& curve, size_t number, const Axis& x, const Axis& y) {
  if (curve.dots) {
    std::string out = fmt::format("<g fill=\"{}\" fill-opacity=\"0.45\">\n", color_of(number));
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const auto& [px, py] = curve.points[i];
      const bool told = i < curve.labels.size();
      const auto inside = told ? "><title>" + escape_html(curve.labels[i]) + "</title></circle>" : "/>";
      out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"{}\n", x.at(px), y.at(py), told ? 4 : 2, inside);
    }
    return out + "</g>\n";
  }
  std::string path;
  for (size_t i = 0; i < curve.points.size(); ++i) {
    const double px = x.at(curve.points[i].first), py = y.at(curve.points[i].second);
    if (i > 0 && curve.steps) path += fmt::format("H{:.1f}", px);
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", px, py);
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"><title>{}</title></path>\n", path,
                     color_of(number), escape_html(curve.name));
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1040px; color: #222; background: #fff; }}
table {{ border-collapse: collapse; }} th, td {{ padding: 3px 10px; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }} svg {{ margin: 8px 0; max-width: 100%; height: auto; }}
svg text {{ font: 11px system-ui, sans-serif; fill: #333; }} svg text.title {{ font-size: 13px; font-weight: 600; }}
.grid {{ stroke: #e4e4e4; stroke-width: 1; }} dt {{ font-weight: 600; float: left; width: 8em; }} dd {{ margin-left: 8em; }}
</style></head><body>
{}</body></html>
)",
                     escape_html(title), body);
}

std::string Chart::svg() const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double x_low = infinity, x_high = -infinity, y_low = infinity, y_high = -infinity;
  for (const auto& curve : curves) {
    for (const auto& [px, py] : curve.points) {
      x_low = std::min(x_low, px);
      x_high = std::max(x_high, px);
      y_low = std::min(y_low, py);
      y_high = std::max(y_high, py);
    }
  }
  if (x_low > x_high) return "<p>(nothing to draw)</p>\n";
  if (!log_y && from_zero) y_low = 0;
  if (y_high <= y_low) y_high = y_low + 1;
  if (x_high <= x_low) x_high = x_low + 1;
  if (!x_names.empty()) x_low = -0.5, x_high = static_cast<double>(x_names.size()) - 0.5;
  const Axis x{x_low, x_high, left, width - right, log_x, x_names}, y{y_low, y_high, height - bottom, top, log_y, {}};
  std::string out = open_svg(width, height) + text(left, 16, "start", title, "class=\"title\"");
  out += draw_axes(x, y, x_label, y_label);
  for (size_t i = 0; i < curves.size(); ++i) {
    out += draw_curve(curves[i], i, x, y);
    const double row = top + 6 + 16 * static_cast<double>(i);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", width - right + 10,
                       row - 9, color_of(i));
    out += text(width - right + 24, row, "start", curves[i].name);
  }
  return out + "</svg>\n";
}

std::string BarChart::svg() const {
  constexpr double row_height = 13, wide = 1000;
  const double bars_bottom = top + row_height * static_cast<double>(rows.size());
  const Axis x{begin, end, 90, wide - 10, false, {}};
  std::string out = open_svg(wide, bars_bottom + bottom) + text(90, 16, "start", title, "class=\"title\"");
  for (double value : x.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n",
                       x.at(value), top, bars_bottom);
    out += text(x.at(value), bars_bottom + 15, "middle", x.label(value));
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    out += text(84, top + row_height * (static_cast<double>(row) + 0.8), "end", rows[row]);
  }
  for (const auto& bar : bars) {
    const double from = x.at(std::max(bar.begin, begin)), to = x.at(std::min(bar.end, end));
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n",
        from, top + row_height * bar.row + 1, std::max(0.5, to - from - 0.3), row_height - 2,
        color_of(static_cast<size_t>(bar.color)), escape_html(bar.label));
  }
  out += text((90 + wide) / 2, bars_bottom + 34, "middle", x_label);
  return out + "</svg>\n";
}

}  // namespace trireme
