// What must hold for every cluster and every set of jobs, on thousands of random ones.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "tests/fleet/random_cluster.h"
#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/lp/center.h"
#include "trireme/fleet/lp/share_solver.h"
#include "trireme/fleet/lp/prices.h"

namespace trireme::fleet {
namespace {

constexpr int instances = 20;  // of each of RapidCheck's hundred cases

double cost_of(const ShareProblem::Cost& cost, const std::vector<double>& shares) {
  return std::inner_product(shares.begin(), shares.end(), cost.alone.begin(), 0.0);
}

Allocation as_allocation(const ShareSolution& solution) { return {solution.alone, solution.paired}; }

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
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

RC_GTEST_PROP(PriceSolver, WarmAndColdGiveTheSame, (uint64_t seed)) {
  RandomCluster random(seed);
  const auto view = random.view(60, 8, false);
  auto warm = make_policy("max-min", 0);
  auto now = view;
  const size_t types = view.types.size();
  for (int i = 0; i < instances; ++i) {
    // Some jobs leave, one may return, speeds change.
    ClusterView next;
    next.types = now.types;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      if (random.below(8) == 0 && !(next.jobs.empty() && m + 1 == view.jobs.size())) continue;
      next.jobs.push_back(view.jobs[m]);
      for (size_t j = 0; j < types; ++j) next.throughput.push_back(view.throughput[m * types + j]);
    }
    now = next;
    const auto continued = warm->allocate(now), fresh = make_policy("max-min", 0)->allocate(now);
    RC_ASSERT(largest_difference(continued.alone, fresh.alone) <= 1e-6);
  }
}

RC_GTEST_PROP(PriceSolver, OrderOfJobsDoesNotMatter, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    const auto view = random.view(40, 6, false);
    const size_t types = view.types.size();
    std::vector<size_t> order(view.jobs.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.random);
    auto shuffled = view;
    for (size_t m = 0; m < order.size(); ++m) {
      shuffled.jobs[m] = view.jobs[order[m]];
      for (size_t j = 0; j < types; ++j) {
        shuffled.throughput[m * types + j] = view.throughput[order[m] * types + j];
        if (!view.held.empty()) shuffled.held[m * types + j] = view.held[order[m] * types + j];
      }
    }
    const auto straight = make_policy("max-min", 0)->allocate(view),
               other = make_policy("max-min", 0)->allocate(shuffled);
    for (size_t m = 0; m < order.size(); ++m) {
      for (size_t j = 0; j < types; ++j) {
        RC_ASSERT(std::abs(other.alone[m * types + j] - straight.alone[order[m] * types + j]) <= 1e-6);
      }
    }
  }
}

RC_GTEST_PROP(MaxMin, OneMoreDeviceNeverLowersTheLevel, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    const auto view = random.view(50, 8, false);
    auto problem = max_min_problem(view);
    const double before = PriceSolver().solve(problem).level;
    problem.capacity[static_cast<size_t>(random.below(static_cast<int>(problem.types)))] += 1;
    RC_ASSERT(PriceSolver().solve(problem).level >= before * (1 - 1e-12));
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

RC_GTEST_PROP(WaterFilling, StartsAsMaxMin, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    const auto view = random.view(30, 5, false);
    const auto problem = max_min_problem(view);
    const double level = PriceSolver().solve(problem).level;
    const auto allocation = make_policy("water-filling", 0)->allocate(view);
    for (size_t m = 0; m < problem.jobs; ++m) {
      double got = 0;
      for (size_t j = 0; j < problem.types; ++j)
        got += problem.value[m * problem.types + j] * allocation.alone[m * problem.types + j];
      if (problem.gain[m] > 0) RC_ASSERT(got >= level * (1 - 1e-8));
    }
  }
}

RC_GTEST_PROP(AllPolicies, ObeyTheRules, (uint64_t seed)) {
  RandomCluster random(seed);
  for (const auto& info : policies()) {
    auto view = random.view(info.shares_devices ? 9 : 16, 4, info.shares_devices);
    view.reference = random.below(2) && info.name != "fifo";  // the published one gives away what it does not have
    if (info.name == "allox") {
      for (auto& job : view.jobs) job.scale = 1;  // it takes no others
    }
    auto policy = make_policy(info.name, seed);
    RC_ASSERT(violation(view, policy->allocate(view)) <= 1e-8);
    RC_ASSERT(violation(view, policy->allocate(view)) <= 1e-8);
    RC_ASSERT(policy->allocate(ClusterView{view.types}).alone.empty());
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

RC_GTEST_PROP(Center, HasTheSameLevelAndIsInside, (uint64_t seed)) {
  RandomCluster random(seed);
  for (int i = 0; i < instances; ++i) {
    const auto view = random.view(40, 6, false);
    const auto problem = max_min_problem(view);
    const Pool pool(problem);
    const auto center = pool.spread(center_of_optima(pool.problem())), direct = center_of_optima(problem);
    RC_ASSERT(center.feasible);
    const double level = PriceSolver().solve(problem).level;
    RC_ASSERT(std::abs(center.level - level) <= 3e-3 * std::max(1.0, level));
    RC_ASSERT(violation(view, as_allocation(center)) <= 1e-5);
    RC_ASSERT(largest_difference(center.alone, direct.alone) <= 1e-2);  // a pool has the centre of its jobs
  }
}

RC_GTEST_PROP(StrategyProof, LyingDoesNotPay, (uint64_t seed)) {
  RandomCluster random(seed);
  auto view = random.view(6, 4, false);
  const size_t types = view.types.size(), liar = static_cast<size_t>(random.below(static_cast<int>(view.jobs.size())));
  const double honest = speeds_under(view, make_policy("strategy-proof", 0)->allocate(view))[liar];
  auto lie = view;
  for (size_t j = 0; j < types; ++j) lie.throughput[liar * types + j] *= 0.2 + random.uniform();
  const double lying = speeds_under(view, make_policy("strategy-proof", 0)->allocate(lie))[liar];
  RC_ASSERT(lying <= honest * (1 + 1e-3));
}

}  // namespace
}  // namespace trireme::fleet
