// Max-min fairness to the end: when the jobs that get least can get no more, they are left where they are and the rest
// rises on, until nobody can rise. The result wastes nothing: no job could get more without another getting less.
//
// With owners (entities) the water rises for owners: an owner's weight is split over its jobs that still rise, by their
// weights, or all given to its oldest.
#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

class WaterFilling final : public Policy {
 public:
  explicit WaterFilling(Speeds speeds) : speeds_(speeds) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    const auto speeds = believed_speeds(view, speeds_);
    auto factor = proportional_speeds(view, speeds);
    for (auto& each : factor) each = each > 0 ? 1 / each : 0;
    auto problem = share_problem(view, speeds, factor);
    problem.base.assign(problem.jobs, 0);
    std::vector<uint8_t> rising(problem.jobs);
    for (size_t m = 0; m < problem.jobs; ++m) rising[m] = can_run(problem, m);
    while (rise(view, problem, rising)) {
    }
    problem.raises_level = in_the_middle(view);
    problem.costs = {tie_costs(view, problem)};
    return to_allocation(solver_.solve(view, problem));
  }

 private:
  // w_m of the jobs that still rise.
  static std::vector<double> weights(const ClusterView& view, const std::vector<uint8_t>& rising) {
    std::vector<double> result(view.jobs.size(), 0);
    if (view.entities.empty()) {
      for (size_t m = 0; m < result.size(); ++m) result[m] = rising[m] ? view.jobs[m].weight : 0;
      return result;
    }
    const size_t entities = view.entities.size();
    std::vector<double> sum(entities, 0);
    std::vector<int> oldest(entities, -1);
    for (size_t m = 0; m < result.size(); ++m) {
      const int owner = view.jobs[m].entity;
      if (owner < 0 || static_cast<size_t>(owner) >= entities)
        fail("job {} has the unknown owner {}", view.jobs[m].id, owner);
      if (!rising[m]) continue;
      sum[owner] += view.jobs[m].weight;
      if (oldest[owner] < 0 || view.jobs[m].id < view.jobs[oldest[owner]].id) oldest[owner] = static_cast<int>(m);
    }
    for (size_t m = 0; m < result.size(); ++m) {
      const int owner = view.jobs[m].entity;
      const auto& entity = view.entities[owner];
      if (!rising[m]) continue;
      if (entity.in_order) {
        result[m] = oldest[owner] == static_cast<int>(m) ? entity.weight : 0;
      } else {
        result[m] = entity.weight * view.jobs[m].weight / sum[owner];
      }
    }
    return result;
  }

  bool in_the_middle(const ClusterView& view) const { return view.reference || speeds_ != Speeds::known; }

  // One rise: the level goes up as far as it can, and those who hold it back are frozen. Whether somebody still rises.
  bool rise(const ClusterView& view, ShareProblem& problem, std::vector<uint8_t>& rising) {
    const auto any = [&] { return std::any_of(rising.begin(), rising.end(), [](uint8_t each) { return each; }); };
    if (!any()) return false;
    const auto weight = weights(view, rising);
    for (size_t m = 0; m < problem.jobs; ++m) problem.gain[m] = weight[m] / view.jobs[m].scale;
    const auto solution = solver_.level_of(problem);
    if (!solution.feasible) fail("water-filling lost its own allocation of {} jobs", problem.jobs);
    bool frozen = false;
    for (size_t m = 0; m < problem.jobs; ++m) {
      if (weight[m] > 0 && solution.pressure[m] > 0) rising[m] = 0, frozen = true;
    }
    for (size_t m = 0; m < problem.jobs && !frozen; ++m) rising[m] &= weight[m] <= 0;
    // Where the centre is asked for, it is that of the last rise, and what is frozen must leave it an inside.
    if (in_the_middle(view) && !any()) return false;
    const double rounding = in_the_middle(view) ? 1e-4 : problem.pairs.empty() ? 1e-10 : 1e-8;
    for (size_t m = 0; m < problem.jobs; ++m) {
      problem.base[m] += std::max(0.0, solution.level) * problem.gain[m] * (1 - rounding);
    }
    return any();
  }

  const Speeds speeds_;
  ShareSolver solver_{speeds_};
};

const char* const formula =
    "lexicographic max-min of s_m·thr(m,X) / (w_m·thr(m,X_prop)); w of an owner split over its jobs that still rise";

}  // namespace

PolicyEntry water_filling_policy() {
  return {{"water-filling",
           {"max_min_fairness_water_filling_perf"},
           "max-min fairness of owners and jobs to the end: nobody can get more without another getting less",
           formula,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<WaterFilling>(Speeds::known); }};
}

PolicyEntry water_filling_agnostic_policy() {
  PolicyInfo info{"water-filling-agnostic",
                  {"max_min_fairness_water_filling"},
                  "max-min fairness of owners' and jobs' time to the end, whatever the device",
                  std::string(formula) + ", T = 1"};
  info.shuffles_types = true;
  return {info, [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<WaterFilling>(Speeds::equal); }};
}

PolicyEntry water_filling_packed_policy() {
  return {{"water-filling-packed",
           {"max_min_fairness_water_filling_packed"},
           "water-filling, where two jobs may share their devices",
           std::string(formula) + " over jobs alone and in pairs",
           true,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<WaterFilling>(Speeds::known); }};
}

}  // namespace trireme::fleet
