// What must hold for every cluster and every set of jobs, on thousands of random ones. What only Clp can solve is in
// clp_properties_test.cpp.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "tests/fleet/random_policies.h"
#include "trireme/fleet/lp/center.h"
#include "trireme/fleet/lp/prices.h"

namespace trireme::fleet {
namespace {

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
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

RC_GTEST_PROP(Policies, ObeyTheRules, (uint64_t seed)) {
  RandomCluster random(seed);
  for (const auto& info : policies()) {
    if (info.shares_devices) continue;
    RC_ASSERT(obeys_the_rules(info, random, seed));
  }
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
