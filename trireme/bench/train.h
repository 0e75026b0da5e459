// `trireme bench train`: our step time beside PyTorch's, with the same weights, batches and, checked first, losses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/observe/bench_line.h"

namespace trireme {

struct TrainBenchOptions {
  std::vector<std::string> cases;
  std::vector<int> ranks;
  std::vector<std::string> peers;  // names of TorchPeer::known(); empty: all that differ on this machine
  int repeats = 4;
  int steps = 20;
  double seconds = 5;                 // for which each run of the case `shared` is watched
  int hosts = 1;                      // more: that many network namespaces of this machine, joined by links of
  std::string rate = "500mbit";       // this rate; needs root
  std::string codec = "none";         // ours; with another than none, beside DDP's hooks as well
  std::vector<std::string> settings;  // of ours besides the case's; then also beside a plain all-reduce of ours
  std::string python = TRIREME_PYTHON;
};

// Calls `each` with a line for each peer of each case, and for each situation of the case `shared`.
void run_train_bench(const TrainBenchOptions& options, const std::function<void(const BenchLine&)>& each);

}  // namespace trireme
