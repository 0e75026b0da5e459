#include "trireme/observe/pace.h"

#include <algorithm>

#include "trireme/base/statistics.h"

namespace trireme {

void Pace::add(double step_s) {
  if (steps_.size() < kept) {
    steps_.push_back(step_s);
    return;
  }
  steps_[next_] = step_s;
  next_ = (next_ + 1) % kept;
}

double Pace::deadline_s() const {
  const double middle = median(steps_);
  return middle + spreads * std::max(median_distance(steps_, middle), least_spread * middle);
}

}  // namespace trireme
