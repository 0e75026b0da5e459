// Small pictures for reports: curves and points with axes, and bars in rows, as SVG that stands in a page by itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool dots = false;                // points only
  bool steps = false;               // a value holds until the next point
  std::vector<std::string> labels;  // of dots that are few, and larger then: shown under the pointer
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Curve> curves;
  bool from_zero = true;             // where the y axis begins, unless it is logarithmic
  std::vector<std::string> x_names;  // where x counts things without a number: their names, from 0 on

  std::string svg() const;
};

struct Bar {
  int row = 0;
  double begin = 0, end = 0;
  int color = 0;
  std::string label;  // shown under the pointer
};

struct BarChart {
  std::string title, x_label;
  double begin = 0, end = 1;
  std::vector<std::string> rows;
  std::vector<Bar> bars;

  std::string svg() const;
};

// A page that needs nothing but itself: `body` in the style that these pictures share.
std::string html_page(const std::string& title, const std::string& body);

std::string escape_html(const std::string& text);

}  // namespace trireme
