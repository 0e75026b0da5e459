// Finish-time fairness (Themis): how much later a job ends than it would alone on its nth of the cluster,
//
//   ρ_m = (t_m + S_m / thr(m,X)) / (I_m + S_m / thr(m,X_iso)),
//
// is made as small as it can be for the job where it is largest. ρ is reached when thr(m,X) ≥ S_m / (ρ D_m − t_m),
// whose right side is convex in ρ: Newton's steps, one linear program each, rise to the least ρ and never pass it.
#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

class FinishTimeFairness final : public Policy {
 public:
  explicit FinishTimeFairness(Speeds speeds) : speeds_(speeds) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    const auto speeds = believed_speeds(view, speeds_);
    const auto alone_s = times_alone(view, isolated_speeds(view, speeds));
    auto problem = share_problem(view, speeds, std::vector<double>(view.jobs.size(), 1));
    demand(view, problem, alone_s, least_ratio(view, problem, alone_s));
    problem.curved = true;
    problem.costs = {tie_costs(view, problem)};
    return to_allocation(solver_.solve(view, problem));
  }

 private:
  // What a job's steps so far would have taken on its nth of the cluster as that was at each time.
  struct Known {
    double isolated_s = 0, steps_left = 0, isolated_speed = 0;
  };

  // D_m = I_m + S_m / thr(m,X_iso)
  std::vector<double> times_alone(const ClusterView& view, const std::vector<double>& isolated) {
    std::map<int64_t, Known> now;
    std::vector<double> alone_s;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      const auto& job = view.jobs[m];
      const auto before = known_.find(job.id);
      Known known{job.isolated_s, job.steps_left, isolated[m]};
      if (before != known_.end()) {
        const auto& last = before->second;
        known.isolated_s = last.isolated_s;
        if (last.isolated_speed > 0) known.isolated_s += (last.steps_left - job.steps_left) / last.isolated_speed;
      }
      alone_s.push_back(known.isolated_s + (isolated[m] > 0 ? job.steps_left / isolated[m] : 0));
      now.emplace(job.id, known);
    }
    known_ = std::move(now);
    return alone_s;
  }

  // r_m(ρ), and as g_m how it falls with ρ, so that L is how much further ρ could fall.
  static void demand(const ClusterView& view, ShareProblem& problem, const std::vector<double>& alone_s, double ratio) {
    for (size_t m = 0; m < problem.jobs; ++m) {
      const auto& job = view.jobs[m];
      const double time_s = ratio * alone_s[m] - job.age_s;
      if (!can_run(problem, m) || job.steps_left <= 0) continue;
      problem.base[m] = job.steps_left / time_s;
      problem.gain[m] = job.steps_left * alone_s[m] / (time_s * time_s);
    }
  }

  double least_ratio(const ClusterView& view, ShareProblem problem, const std::vector<double>& alone_s) {
    double ratio = 0;  // no job can do better than its fastest type all of the time
    for (size_t m = 0; m < problem.jobs; ++m) {
      const double* row = &problem.value[m * problem.types];
      double fastest = *std::max_element(row, row + problem.types);
      for (size_t c = 0; c < problem.pairs.size(); ++c) {
        if (problem.pairs[c].first != static_cast<int>(m) && problem.pairs[c].second != static_cast<int>(m)) continue;
        const auto& values = problem.pairs[c].first == static_cast<int>(m) ? problem.value_first : problem.value_second;
        for (size_t j = 0; j < problem.types; ++j) fastest = std::max(fastest, values[c * problem.types + j]);
      }
      const auto& job = view.jobs[m];
      if (fastest > 0 && job.steps_left > 0)
        ratio = std::max(ratio, (job.age_s + job.steps_left / fastest) / alone_s[m]);
    }
    for (int turn = 0; turn < 100; ++turn) {
      demand(view, problem, alone_s, ratio);
      const auto solution = solver_.level_of(problem);
      if (!solution.feasible) fail("finish-time fairness found no allocation for {} jobs", problem.jobs);
      if (solution.level >= -1e-12 * ratio) break;
      ratio -= solution.level;
    }
    return ratio;
  }

  const Speeds speeds_;
  ShareSolver solver_{speeds_};
  std::map<int64_t, Known> known_;
};

const char* const formula = "min_X max_m (t_m + S_m/thr(m,X)) / (I_m + S_m/thr(m,X_iso)), X_iso_mj = W_j/(n s_m)";

}  // namespace

PolicyEntry finish_time_fairness_policy() {
  return {{"finish-time-fairness",
           {"finish_time_fairness_perf", "ftf_perf"},
           "no job ends much later than it would alone on its nth of the cluster, by how fast each type is for it",
           formula,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<FinishTimeFairness>(Speeds::known); }};
}

PolicyEntry finish_time_fairness_agnostic_policy() {
  PolicyInfo info{"finish-time-fairness-agnostic",
                  {"finish_time_fairness", "ftf"},
                  "no job ends much later than it would alone on its nth, as if every device were a job's fastest",
                  std::string(formula) + ", T_mj = max_k T_mk"};
  info.shuffles_types = true;
  return {info,
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<FinishTimeFairness>(Speeds::fastest); }};
}

PolicyEntry finish_time_fairness_packed_policy() {
  return {{"finish-time-fairness-packed",
           {"finish_time_fairness_packed"},
           "finish-time fairness, where two jobs may share their devices",
           std::string(formula) + " over jobs alone and in pairs",
           true,
           true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<FinishTimeFairness>(Speeds::known); }};
}

}  // namespace trireme::fleet
