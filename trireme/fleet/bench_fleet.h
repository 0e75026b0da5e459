// `trireme bench fleet`: one max-min solve by the price solver beside Clp, cold and after a few jobs changed.
//
// The floor: a solve must read every job's speeds and usage at least once and write its shares, 3 M J doubles; at 2,048
// jobs and 8 types 393 kB, 20 µs at 20 GB/s. It is measured in the same run as one pass over these arrays that adds up
// what each job would get. A cold solve has to find J prices as well: each look at prices is such a pass.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/observe/bench_line.h"

namespace trireme::fleet {

struct FleetBenchOptions {
  std::vector<int> jobs{128, 512, 2048};
  std::vector<int> types{3, 8};
  std::vector<double> loads{0.5, 1.5, 4};  // devices that jobs want, against those that there are
  int repeats = 5;
  uint64_t seed = 1;
};

// CPU seconds. Answers are compared before times count: a level that differs from Clp's by 1e-9 ends the benchmark.
void run_fleet_bench(const FleetBenchOptions& options, const std::function<void(const BenchLine&)>& each);

}  // namespace trireme::fleet
