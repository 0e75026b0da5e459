// How long a step may take before it is late, by what steps have taken: the median of the last ones and ten times their
// spread (the median distance from it). One step that took long, for an evaluation or a slow disk, so moves nothing,
// which the longest step would for good.
#pragma once

#include <cstddef>
#include <vector>

namespace trireme {

class Pace {
 public:
  static constexpr size_t kept = 32;           // steps
  static constexpr double spreads = 10;        // beyond the median
  static constexpr double least_spread = 0.1;  // of the median: steps that are all alike may still differ once

  void add(double step_s);
  double deadline_s() const;  // 0 before the first step has ended

 private:
  std::vector<double> steps_;
  size_t next_ = 0;  // the oldest, once there are `kept`
};

}  // namespace trireme
