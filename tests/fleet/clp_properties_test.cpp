// What must hold for every cluster and every set of jobs, seen by the solver Clp: our answers beside its own, and those
// of policies whose jobs share devices, which it solves.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "tests/fleet/random_policies.h"
#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/lp/prices.h"

namespace trireme::fleet {
namespace {

double cost_of(const ShareProblem::Cost& cost, const std::vector<double>& shares) {
  return std::inner_product(shares.begin(), shares.end(), cost.alone.begin(), 0.0);
}

RC_GTEST_PROP(PriceSolver, AgreesWithClp, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    const auto view = random.view(50, 8, false);
    auto problem = max_min_problem(view);
    if (random.below(3) == 0) {  // jobs that have something already
      for (size_t m = 0; m < problem.jobs; ++m) {
        const double* row = &problem.value[m * problem.types];
        problem.base[m] = random.below(2) ? 0 : 0.01 * random.uniform() * *std::max_element(row, row + problem.types);
      }
    }
    problem.costs = {tie_costs(view, problem)};
    if (random.below(2)) {
      problem.costs.push_back(problem.costs[0]);
      for (auto& cost : problem.costs[0].alone) cost = random.below(4) - 2;
    }
    const auto found = PriceSolver().solve(problem);
    const auto expected = ClpShareSolver().solve(problem);
    RC_ASSERT(found.feasible == expected.feasible);
    if (!found.feasible) continue;
    RC_ASSERT(std::abs(found.level - expected.level) <= 1e-9 * std::max(1.0, std::abs(expected.level)));
    RC_ASSERT(violation(view, as_allocation(found)) <= 1e-9);
    for (const auto& cost : problem.costs) {
      const double mine = cost_of(cost, found.alone), other = cost_of(cost, expected.alone);
      RC_ASSERT(std::abs(mine - other) <= 1e-6 * std::max(1.0, std::abs(other)));
    }
  }
}

// The most that jobs could still gain in sum without anybody losing, each measured against its fastest type.
double waste(const ClusterView& view, const Allocation& allocation) {
  const auto speeds = speeds_under(view, allocation);
  auto problem = max_min_problem(view);
  problem.raises_level = false;
  problem.costs.resize(1);
  for (size_t m = 0; m < problem.jobs; ++m) {
    double* row = &problem.value[m * problem.types];
    for (size_t j = 0; j < problem.types; ++j) row[j] = row[j] > 0 ? view.throughput[m * problem.types + j] : 0;
    const double fastest = *std::max_element(row, row + problem.types);
    problem.base[m] = speeds[m] * (1 - 1e-11);
    for (size_t j = 0; j < problem.types; ++j) problem.costs[0].alone.push_back(fastest > 0 ? -row[j] / fastest : 0);
  }
  const auto best = ClpShareSolver().solve(problem);
  if (!best.feasible) return 1e9;
  return cost_of(problem.costs[0], allocation.alone) - cost_of(problem.costs[0], best.alone);
}

RC_GTEST_PROP(WaterFilling, WastesNothing, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    auto view = random.view(20, 5, false);
    if (random.below(2)) view.entities = {{1, false}, {2, random.below(2) == 0}, {1.5, false}};
    const auto allocation = make_policy("water-filling", 0)->allocate(view);
    RC_ASSERT(violation(view, allocation) <= 1e-9);
    RC_ASSERT(waste(view, allocation) <=
              1e-4);  // the 1e-11 that waste() takes from some can be worth 1e6 times as much to others
  }
}

RC_GTEST_PROP(Packed, NeverWorseThanAlone, (uint64_t seed)) {
  RandomCluster random(seed);
  const auto view = random.view(10, 4, true);
  const auto least = [&](const Allocation& allocation) {
    const auto problem = max_min_problem(view);
    const auto speeds = speeds_under(view, allocation);
    double result = 1e300, total = 0;
    for (const auto& type : view.types) total += type.devices;
    for (size_t m = 0; m < problem.jobs; ++m) {
      double average = 0;
      for (size_t j = 0; j < problem.types; ++j)
        average += view.throughput[m * problem.types + j] * view.types[j].devices / total;
      if (problem.gain[m] > 0)
        result = std::min(result, speeds[m] * view.jobs[m].scale / (view.jobs[m].weight * average));
    }
    return result;
  };
  auto alone = view;
  alone.pairs.clear();
  alone.throughput_first.clear();
  alone.throughput_second.clear();
  const auto packed = make_policy("max-min-packed", 0)->allocate(view);
  auto plain = make_policy("max-min", 0)->allocate(alone);
  RC_ASSERT(least(packed) >= least(plain) * (1 - 1e-8));
}

RC_GTEST_PROP(PoliciesThatShareDevices, ObeyTheRules, (uint64_t seed)) {
  RandomCluster random(seed);
  for (const auto& info : policies()) {
    if (!info.shares_devices) continue;
    RC_ASSERT(obeys_the_rules(info, random, seed));
  }
}

}  // namespace
}  // namespace trireme::fleet
