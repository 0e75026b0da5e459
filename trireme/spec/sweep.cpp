#include "trireme/spec/sweep.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {

namespace {

// Cuts at each `separator` that stands outside of brackets.
std::vector<std::string> cut(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c == separator && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::pair<std::string, std::string> key_and_values(const char* option, const char* example, const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    refuse("{} {}: write a key and what it takes, as {}", option, text, example);
  return {text.substr(0, equals), text.substr(equals + 1)};
}

void check_list(const char* option, const SweepAxis& axis) {
  for (size_t i = 0; i < axis.values.size(); ++i) {
    const auto& value = axis.values[i];
    if (value.empty()) refuse("{} {}: a value is empty", option, axis.key);
    if (std::find(axis.values.begin(), axis.values.begin() + static_cast<std::ptrdiff_t>(i), value) !=
        axis.values.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse("{} {}: {} is there twice", option, axis.key, value);
    }
  }
}

double number_of(const std::string& word, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || !std::isfinite(value))
    refuse("--random {}: {} is no number", text, word.empty() ? "an empty bound" : word);
  return value;
}

bool is_whole(const std::string& word) { return word.find_first_not_of("+-0123456789") == std::string::npos; }

}  // namespace

SweepAxis SweepAxis::grid(const std::string& text) {
  const auto [key, values] = key_and_values("--grid", "optimizer.lr=1e-4,3e-4", text);
  SweepAxis axis;
  axis.key = key;
  axis.values = cut(values, ',');
  check_list("--grid", axis);
  return axis;
}

SweepAxis SweepAxis::random(const std::string& text) {
  auto [key, range] = key_and_values("--random", "optimizer.lr=log:1e-4..1e-2", text);
  SweepAxis axis;
  axis.key = key;
  const bool logarithmic = range.rfind("log:", 0) == 0;
  if (logarithmic) range = range.substr(4);
  const auto dots = range.find("..");
  if (dots == std::string::npos || range.find('|') != std::string::npos) {
    if (logarithmic) refuse("--random {}: log: is followed by low..high", text);
    axis.values = cut(range, '|');
    check_list("--random", axis);
    return axis;
  }
  const auto low = range.substr(0, dots), high = range.substr(dots + 2);
  axis.kind = logarithmic ? Kind::logarithmic : Kind::uniform;
  axis.low = number_of(low, text);
  axis.high = number_of(high, text);
  axis.whole = is_whole(low) && is_whole(high);
  if (axis.low >= axis.high) refuse("--random {}: {} must be below {}", text, low, high);
  if (logarithmic && axis.low <= 0) refuse("--random {}: a logarithmic range begins above 0", text);
  return axis;
}

std::string SweepAxis::draw(uint64_t seed, int64_t trial) const {
  const double drawn = uniform(Key{seed}.with("sweep").with(key), static_cast<uint64_t>(trial));
  if (kind == Kind::list) return values[static_cast<size_t>(drawn * static_cast<double>(values.size()))];
  // A whole number stands for the unit that begins at it.
  const double end = whole ? high + 1 : high;
  double value = low + drawn * (end - low);
  if (kind == Kind::logarithmic) value = low * std::exp(drawn * std::log(end / low));
  if (whole) return fmt::format("{}", static_cast<int64_t>(std::clamp(std::floor(value), low, high)));
  // Four digits are enough to search by, and can be read; unless they would leave the range.
  const auto brief = fmt::format("{:.4g}", value);
  const double rounded = std::strtod(brief.c_str(), nullptr);
  return rounded >= low && rounded <= high ? brief : fmt::format("{}", value);
}

std::vector<SweepPoint> grid_points(const std::vector<SweepAxis>& axes) {
  std::vector<SweepPoint> points(1);
  for (const auto& axis : axes) {
    std::vector<SweepPoint> longer;
    for (const auto& point : points) {
      for (const auto& value : axis.values) {
        longer.push_back(point);
        longer.back().emplace_back(axis.key, value);
      }
    }
    points = std::move(longer);
  }
  return points;
}

std::vector<SweepPoint> random_points(const std::vector<SweepAxis>& axes, int64_t trials, uint64_t seed) {
  std::vector<SweepPoint> points(static_cast<size_t>(trials));
  for (int64_t trial = 0; trial < trials; ++trial) {
    for (const auto& axis : axes) points[static_cast<size_t>(trial)].emplace_back(axis.key, axis.draw(seed, trial));
  }
  return points;
}

std::string describe(const SweepPoint& point) {
  std::string text;
  for (const auto& [key, value] : point) text += (text.empty() ? "" : " ") + key + "=" + value;
  return text;
}

}  // namespace trireme
