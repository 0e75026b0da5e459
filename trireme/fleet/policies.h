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
PolicyEntry max_min_policy();
PolicyEntry max_min_agnostic_policy();
PolicyEntry max_min_packed_policy();
PolicyEntry water_filling_policy();
PolicyEntry water_filling_agnostic_policy();
PolicyEntry water_filling_packed_policy();
PolicyEntry finish_time_fairness_policy();
PolicyEntry finish_time_fairness_agnostic_policy();
PolicyEntry finish_time_fairness_packed_policy();
PolicyEntry makespan_policy();
PolicyEntry makespan_agnostic_policy();
PolicyEntry makespan_packed_policy();
PolicyEntry max_throughput_policy();
PolicyEntry max_throughput_agnostic_policy();
PolicyEntry max_throughput_packed_policy();
PolicyEntry min_cost_policy();
PolicyEntry min_cost_agnostic_policy();
PolicyEntry min_cost_packed_policy();
PolicyEntry min_cost_deadlines_policy();
PolicyEntry min_cost_deadlines_packed_policy();
PolicyEntry strategy_proof_policy();
PolicyEntry strategy_proof_agnostic_policy();

}  // namespace trireme::fleet
