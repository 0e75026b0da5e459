// The table of policies. A policy is one file under policies/ that defines one or more functions of this list; each
// returns what a person reads about it and how to make it.
#pragma once

#include "trireme/fleet/policy.h"

namespace trireme::fleet {

struct PolicyEntry {
  PolicyInfo info;
  std::unique_ptr<Policy> (*make)(uint64_t seed);
};

PolicyEntry isolated_policy();
PolicyEntry fifo_policy();
PolicyEntry fifo_perf_policy();
PolicyEntry fifo_packed_policy();
PolicyEntry shortest_job_first_policy();
PolicyEntry two_dimensional_las_policy();
PolicyEntry allox_policy();
PolicyEntry gandiva_policy();

}  // namespace trireme::fleet
