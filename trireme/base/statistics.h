// Small sums over what was measured.
#pragma once

#include <algorithm>
#include <vector>

namespace trireme {

// The middle one, or the mean of the two in the middle; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace trireme
