// `trireme bench comm`: our collectives beside Open MPI's own calls in the same processes, on ordinary memory and on
// shared memory like that of our buckets, whichever is better for it, and beside Gloo's (through torch); how much of
// one hides behind computing; and what always-on checking costs.
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
  std::string bind = "none";  // or "core": each rank to one of its own
  std::string tune;           // a file for measured links, instead of a comparison
  std::string python = TRIREME_PYTHON;

  static std::vector<std::string> known();  // cases
  void check();                             // fills in what is usual; refuses what does not go together
  std::vector<int64_t> bytes() const;
};

// Calls `say` with what MPI this is before the lines of each number of ranks.
void run_comm_bench(const CommBenchOptions& options, const std::function<void(const BenchLine&)>& each,
                    const std::function<void(const std::string&)>& say);

// As one of the ranks that measure, or as the one who starts them by the same command line under mpirun: rank 0 prints
// microseconds by case, bytes and side as JSON, or, with `tune`, measures and keeps the links. Gives the exit status.
int measure_comm(const CommBenchOptions& options, const std::vector<std::string>& command_line);

}  // namespace trireme
