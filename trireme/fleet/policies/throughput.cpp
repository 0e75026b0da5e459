// The most steps a second, or the most for the money. With deadlines each job must be fast enough to keep its own;
// where not all can be kept, all are slowed down by the same factor (the reference forgets them instead).
#include <algorithm>
#include <cmath>

#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

class Throughput final : public Policy {
 public:
  Throughput(Speeds speeds, bool by_cost, bool keeps_deadlines)
      : speeds_(speeds), by_cost_(by_cost), keeps_deadlines_(keeps_deadlines) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    auto problem = share_problem(view, believed_speeds(view, speeds_), std::vector<double>(view.jobs.size(), 1));
    problem.raises_level = false;
    if (keeps_deadlines_) demand_deadlines(view, problem);
    problem.costs = {missing_throughput(view, problem), tie_costs(view, problem)};
    return to_allocation(solver_.solve(view, problem));
  }

 private:
  ShareProblem::Cost missing_throughput(const ClusterView& view, const ShareProblem& problem) const {
    const size_t types = problem.types;
    ShareProblem::Cost cost;
    double largest = 0;
    const auto reward = [&](size_t type, double speed) {
      const double price = by_cost_ && view.types[type].cost_per_hour > 0 ? view.types[type].cost_per_hour : 1;
      largest = std::max(largest, speed / price);
      return -speed / price;
    };
    for (size_t i = 0; i < problem.value.size(); ++i) cost.alone.push_back(reward(i % types, problem.value[i]));
    for (size_t i = 0; i < problem.value_first.size(); ++i) {
      cost.paired.push_back(reward(i % types, problem.value_first[i] + problem.value_second[i]));
    }
    for (auto* each : {&cost.alone, &cost.paired}) {
      for (auto& one : *each) one /= largest > 0 ? largest : 1;
    }
    return cost;
  }

  void demand_deadlines(const ClusterView& view, ShareProblem& problem) {
    auto reachable = problem;
    reachable.raises_level = true;
    bool any = false;
    for (size_t m = 0; m < problem.jobs; ++m) {
      const auto& job = view.jobs[m];
      const double* row = &problem.value[m * problem.types];
      const double fastest = *std::max_element(row, row + problem.types);
      if (!std::isfinite(job.deadline_s) || fastest <= 0 || job.steps_left <= 0) continue;
      // A deadline that is lost even on the fastest type would slow down all others: the job then runs as fast as it
      // can.
      const double needed = job.deadline_s > 0 ? job.steps_left / job.deadline_s : fastest;
      reachable.gain[m] = view.reference ? needed : std::min(needed, fastest);
      any = true;
    }
    if (!any) return;
    const double level = solver_.level_of(reachable).level;
    if (view.reference && level < 1) return;
    for (size_t m = 0; m < problem.jobs; ++m) problem.base[m] = reachable.gain[m] * std::min(level * (1 - 1e-9), 1.0);
  }

  const Speeds speeds_;
  const bool by_cost_, keeps_deadlines_;
  ShareSolver solver_{speeds_};
};

template <bool by_cost, bool keeps_deadlines>
std::unique_ptr<Policy> make(uint64_t) {
  return std::make_unique<Throughput>(Speeds::known, by_cost, keeps_deadlines);
}

PolicyEntry agnostic(PolicyEntry entry, std::unique_ptr<Policy> (*make)(uint64_t)) {
  entry.info.name += "-agnostic";
  entry.info.aliases.clear();
  entry.info.objective += ", as if every device were a job's fastest";
  entry.info.formula += ", T_mj = max_k T_mk";
  entry.info.knows_speeds = false;
  entry.info.shuffles_types = true;
  entry.make = make;
  return entry;
}

PolicyEntry packed(PolicyEntry entry, std::vector<std::string> aliases) {
  entry.info.name += "-packed";
  entry.info.aliases = std::move(aliases);
  entry.info.objective += "; two jobs may share their devices";
  entry.info.formula += " over jobs alone and in pairs";
  entry.info.shares_devices = true;
  return entry;
}

}  // namespace

PolicyEntry max_throughput_policy() {
  return {{"max-throughput",
           {"max_sum_throughput_perf"},
           "the most steps a second of all jobs together",
           "max_X Σ_m thr(m,X)",
           true},
          make<false, false>};
}

PolicyEntry max_throughput_agnostic_policy() {
  return agnostic(max_throughput_policy(), [](uint64_t) -> std::unique_ptr<Policy> {
    return std::make_unique<Throughput>(Speeds::fastest, false, false);
  });
}

PolicyEntry max_throughput_packed_policy() { return packed(max_throughput_policy(), {}); }

PolicyEntry min_cost_policy() {
  return {{"min-cost",
           {"max_sum_throughput_normalized_by_cost_perf"},
           "the most steps for the money",
           "max_X Σ_mj T_mj X_mj / cost_j",
           true},
          make<true, false>};
}

PolicyEntry min_cost_agnostic_policy() {
  return agnostic(min_cost_policy(), [](uint64_t) -> std::unique_ptr<Policy> {
    return std::make_unique<Throughput>(Speeds::fastest, true, false);
  });
}

PolicyEntry min_cost_packed_policy() { return packed(min_cost_policy(), {}); }

PolicyEntry min_cost_deadlines_policy() {
  return {{"min-cost-deadlines",
           {"max_sum_throughput_normalized_by_cost_perf_SLOs"},
           "the most steps for the money, with every job fast enough for its deadline",
           "max_X Σ_mj T_mj X_mj / cost_j subject to thr(m,X) ≥ S_m/time left",
           true},
          make<true, true>};
}

PolicyEntry min_cost_deadlines_packed_policy() {
  return packed(min_cost_deadlines_policy(), {"max_sum_throughput_normalized_by_cost_packed_SLOs"});
}

}  // namespace trireme::fleet
