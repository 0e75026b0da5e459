// `trireme bench comm`: our collectives beside Open MPI's own calls on the same buffers, in the same processes, and
// beside Gloo's (through torch); how much of one hides behind computing; and what always-on checking costs.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/observe/bench_line.h"
#include "trireme/spec/links.h"

namespace trireme {

struct CommBenchOptions {
  std::vector<int> ranks{2, 4};
  std::vector<std::string> collectives{"all_reduce", "bucket", "reduce_scatter", "all_gather", "all_to_all"};
  std::vector<double> kib{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536};  // bytes of the whole tensor
  int repeats = 3;
  std::string transport = "automatic";
  std::string tune;  // a file for measured links, instead of a comparison
  std::string python = TRIREME_PYTHON;

  static std::vector<std::string> known();  // cases: the collectives, and "overlap", "checking"
  std::vector<int64_t> bytes() const;
};

void run_comm_bench(const CommBenchOptions& options, const std::function<void(const BenchLine&)>& each);

struct MeasuredLinks {
  Links links;
  bool inside = false, between = false;  // which were there to be measured; the other is as it was

  // And by which algorithm each length of an all-reduce between so many ranks would go.
  std::string full(int ranks) const;
};

// Measures the links between the ranks that there are. Collective, under mpirun.
MeasuredLinks measure_links(World& world, const Links& before);

// One rank's part of a run, after World::join under mpirun; rank 0 gets microseconds by case, bytes and side.
nlohmann::ordered_json measure_comm(const CommBenchOptions& options, World& world);

}  // namespace trireme
