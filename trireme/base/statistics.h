// Small sums over what was measured.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace trireme {

// The middle one, or the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// 0 of none.
inline double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// How far they are from `middle`, in the median: a spread that single ones beyond all measure do not move.
inline double median_distance(std::vector<double> values, double middle) {
  for (auto& value : values) value = std::abs(value - middle);
  return median(std::move(values));
}

}  // namespace trireme
