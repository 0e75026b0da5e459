// The least time in which all jobs that are there could end: thr(m,X) ≥ S_m / T for every job. With L = 1/T that is one
// linear program. The reference bisects T until it is known to 5 % instead and takes any allocation that reaches it.
#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

// The T that the reference's bisection ends with when every T from `least` on is feasible.
double bisected(double least) {
  if (!(least < 1e15)) return 1e15;  // nobody has steps left
  double highest = 1e6, lowest = 100, last_highest = highest, found = 0;
  while (found == 0) {
    while (1.05 * lowest < highest) {
      const double middle = (lowest + highest) / 2;
      if (middle >= least) {
        found = highest = middle;
      } else {
        lowest = middle;
      }
    }
    highest = last_highest * 10;
    lowest = last_highest;
    last_highest *= 10;
  }
  return found;
}

class Makespan final : public Policy {
 public:
  explicit Makespan(Speeds speeds) : speeds_(speeds) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    auto problem = share_problem(view, believed_speeds(view, speeds_), std::vector<double>(view.jobs.size(), 1));
    for (size_t m = 0; m < problem.jobs; ++m) problem.gain[m] = can_run(problem, m) * view.jobs[m].steps_left;
    if (!view.reference) {
      problem.costs = {tie_costs(view, problem)};
      return to_allocation(solver_.solve(view, problem));
    }
    const double time_s = bisected(1 / solver_.level_of(problem).level);
    for (size_t m = 0; m < problem.jobs; ++m) problem.base[m] = problem.gain[m] / time_s;
    problem.raises_level = false;
    return to_allocation(solver_.solve(view, problem));
  }

 private:
  const Speeds speeds_;
  ShareSolver solver_{speeds_};
};

const char* const formula = "min T subject to thr(m,X) ≥ S_m/T";

}  // namespace

PolicyEntry makespan_policy() {
  return {{"makespan", {"min_total_duration_perf"}, "all jobs that are there end as soon as they can", formula, true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<Makespan>(Speeds::known); }};
}

PolicyEntry makespan_agnostic_policy() {
  PolicyInfo info{"makespan-agnostic",
                  {"min_total_duration"},
                  "all jobs that are there end as soon as they can, as if every device were a job's fastest",
                  std::string(formula) + ", T_mj = max_k T_mk"};
  info.shuffles_types = true;
  return {info, [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<Makespan>(Speeds::fastest); }};
}

PolicyEntry makespan_packed_policy() {
  return {{"makespan-packed",
           {"min_total_duration_packed"},
           "makespan, where two jobs may share their devices",
           std::string(formula) + " over jobs alone and in pairs",
           true,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<Makespan>(Speeds::known); }};
}

}  // namespace trireme::fleet
