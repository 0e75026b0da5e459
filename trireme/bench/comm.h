// `trireme bench comm`: our collectives beside Open MPI's own calls on the same buffers, in the same processes, and
// beside Gloo's (through torch); how much of one hides behind computing; and what always-on checking costs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/observe/bench_line.h"

namespace trireme {

struct CommBenchOptions {
  std::vector<int> ranks{2, 4};
  std::vector<std::string> collectives;  // cases; empty: the usual ones
  std::vector<double> kib;               // bytes of the whole tensor; empty: the usual ones
  std::string device = "cpu";            // or "cuda": beside the same through the host
  int repeats = 3;
  std::string transport = "automatic";
  std::string tune;  // a file for measured links, instead of a comparison
  std::string python = TRIREME_PYTHON;

  static std::vector<std::string> known();  // cases
  void check();                             // fills in what is usual; refuses what does not go together
  std::vector<int64_t> bytes() const;
};

void run_comm_bench(const CommBenchOptions& options, const std::function<void(const BenchLine&)>& each);

// As one of the ranks that measure, or as the one who starts them by the same command line under mpirun: rank 0 prints
// microseconds by case, bytes and side as JSON, or, with `tune`, measures and keeps the links. Gives the exit status.
int measure_comm(const CommBenchOptions& options, const std::vector<std::string>& command_line);

}  // namespace trireme
