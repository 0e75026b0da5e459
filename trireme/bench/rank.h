// One rank of a benchmark in which all ranks do the same at once: times calls in blocks that alternate with the peer's.
// A block begins when all ranks are there, and takes as long as its slowest rank.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/engine/executor.h"

namespace trireme {

class BenchRank {
 public:
  explicit BenchRank(World& world) : communicator_(world.communicator()) {}

  struct Sides {
    std::function<void()> ours, peer;
  };
  std::pair<double, double> time(const Sides& sides);                          // medians, in seconds a call
  std::vector<double> times(const std::vector<std::function<void()>>& calls);  // of any number of them

  double now_s() const { return clock_.now_s(); }

 private:
  double longest(double value);
  int rounds_of(const std::function<void()>& call);
  double block_of(const std::function<void()>& call, int rounds);

  Communicator& communicator_;
  RealClock clock_;
};

}  // namespace trireme
