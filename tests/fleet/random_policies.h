// What the properties of policies on random clusters have in common.
#pragma once

#include "tests/fleet/random_cluster.h"
#include "trireme/fleet/lp/share_solver.h"
#include "trireme/fleet/policy.h"

namespace trireme::fleet {

constexpr int instances = 20;  // of each of RapidCheck's hundred cases

inline Allocation as_allocation(const ShareSolution& solution) { return {solution.alone, solution.paired}; }

// Whether a policy gives no more than there is, asked twice about a random cluster, and nothing to nobody.
inline bool obeys_the_rules(const PolicyInfo& info, RandomCluster& random, uint64_t seed) {
  auto view = random.view(info.shares_devices ? 9 : 16, 4, info.shares_devices);
  view.reference = random.below(2) && info.name != "fifo";  // the published one gives away what it does not have
  if (info.name == "allox") {
    for (auto& job : view.jobs) job.scale = 1;  // it takes no others
  }
  auto policy = make_policy(info.name, seed);
  return violation(view, policy->allocate(view)) <= 1e-8 && violation(view, policy->allocate(view)) <= 1e-8 &&
         policy->allocate(ClusterView{view.types}).alone.empty();
}

}  // namespace trireme::fleet
