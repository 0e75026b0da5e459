// Max-min fairness, weighted: the job that gets least, measured against what it would get on the whole cluster's
// average device and by its scale and weight, gets as much as it can. Solved anew as jobs come and go this is least
// attained service: who fell behind is served first.
#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

class MaxMin final : public Policy {
 public:
  explicit MaxMin(Speeds speeds) : speeds_(speeds) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    const auto speeds = believed_speeds(view, speeds_);
    auto factor = proportional_speeds(view, speeds);
    for (size_t m = 0; m < factor.size(); ++m) {
      factor[m] = factor[m] > 0 ? view.jobs[m].scale / (view.jobs[m].weight * factor[m]) : 0;
    }
    auto problem = share_problem(view, speeds, factor);
    for (size_t m = 0; m < factor.size(); ++m) problem.gain[m] = can_run(problem, m);
    problem.costs = {tie_costs(view, problem)};
    return to_allocation(solver_.solve(view, problem));
  }

 private:
  const Speeds speeds_;
  ShareSolver solver_{speeds_};
};

const char* const formula = "max_X min_m s_m·thr(m,X) / (w_m·thr(m,X_prop)), X_prop_mj = W_j/ΣW";

}  // namespace

PolicyEntry max_min_policy() {
  return {{"max-min",
           {"max_min_fairness_perf", "las_perf"},
           "the job that gets least gets as much as it can (least attained service), by how fast each type is for it",
           formula,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<MaxMin>(Speeds::known); }};
}

PolicyEntry max_min_agnostic_policy() {
  PolicyInfo info{"max-min-agnostic",
                  {"max_min_fairness", "las"},
                  "the job that gets least gets as much time as it can, whatever the device",
                  std::string(formula) + ", T = 1"};
  info.shuffles_types = true;
  return {info, [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<MaxMin>(Speeds::equal); }};
}

PolicyEntry max_min_packed_policy() {
  PolicyInfo info{"max-min-packed",
                  {"max_min_fairness_packed", "las_packed"},
                  "max-min, where two jobs may share their devices",
                  std::string(formula) + " over jobs alone and in pairs",
                  true,
                  true};
  return {info, [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<MaxMin>(Speeds::known); }};
}

}  // namespace trireme::fleet
