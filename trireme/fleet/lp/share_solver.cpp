#include "trireme/fleet/lp/share_solver.h"

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/center.h"
#include "trireme/fleet/lp/embedding.h"

namespace trireme::fleet {

namespace {

// Throughput counts a hundred times as much as migration: the other way round jobs that once got a slow type stay there
// beside idle fast ones, which costs up to 4 % in mean completion time and, as they stay longer, more preemptions.
constexpr double throughput_weight = 1, migration_weight = 1e-2, identity_weight = 1e-5;

// In [0, 1), the same on every machine.
double identity_number(int64_t id, size_t type) {
  uint64_t x = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15u + (type + 1) * 0xD1B54A32D192ED03u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

// Shares that exceed a job's time or a type's devices by rounding are scaled down to them. Whether it was rounding.
bool keep_rules(const ShareProblem& problem, ShareSolution& solution) {
  if (!solution.feasible) return false;
  const size_t types = problem.types;
  std::vector<double> time(problem.jobs, 0), used(types, 0);
  for (size_t i = 0; i < solution.alone.size(); ++i) {
    time[i / types] += solution.alone[i] / problem.copies(i / types);
    used[i % types] += solution.alone[i] * problem.scale[i / types];
  }
  for (size_t i = 0; i < solution.paired.size(); ++i) {
    const auto [first, second] = problem.pairs[i / types];
    for (int job : {first, second}) time[job] += solution.paired[i] / problem.copies(job);
    used[i % types] += solution.paired[i] * problem.scale[first];
  }
  double excess = 1;
  for (double& each : time) excess = std::max(excess, each = std::max(1.0, each));
  for (size_t j = 0; j < types; ++j) {
    if (problem.capacity[j] > 0) excess = std::max(excess, used[j] = std::max(1.0, used[j] / problem.capacity[j]));
  }
  if (excess > 1.001) return false;
  for (size_t i = 0; i < solution.alone.size(); ++i)
    solution.alone[i] /= time[i / types] * std::max(1.0, used[i % types]);
  for (size_t i = 0; i < solution.paired.size(); ++i) {
    const auto [first, second] = problem.pairs[i / types];
    solution.paired[i] /= std::max(time[first], time[second]) * std::max(1.0, used[i % types]);
  }
  return true;
}

double total_devices(const ClusterView& view) {
  double sum = 0;
  for (const auto& type : view.types) sum += type.devices;
  return sum;
}

}  // namespace

std::vector<double> believed_speeds(const ClusterView& view, Speeds speeds) {
  auto believed = view.throughput;
  if (speeds == Speeds::known) return believed;
  const size_t types = view.types.size();
  for (size_t m = 0; m < view.jobs.size(); ++m) {
    double* row = &believed[m * types];
    const double same = speeds == Speeds::equal ? 1 : *std::max_element(row, row + types);
    for (size_t j = 0; j < types; ++j) row[j] = row[j] > 0 || view.reference ? same : 0;
  }
  return believed;
}

std::vector<double> proportional_speeds(const ClusterView& view, const std::vector<double>& speeds) {
  const size_t types = view.types.size();
  const double total = total_devices(view);
  std::vector<double> result(view.jobs.size(), 0);
  for (size_t m = 0; m < view.jobs.size(); ++m) {
    for (size_t j = 0; j < types; ++j) result[m] += speeds[m * types + j] * view.types[j].devices / total;
  }
  return result;
}

std::vector<double> isolated_speeds(const ClusterView& view, const std::vector<double>& speeds) {
  const size_t types = view.types.size();
  const double jobs = static_cast<double>(view.jobs.size()), total = total_devices(view);
  std::vector<double> result(view.jobs.size(), 0);
  for (size_t m = 0; m < view.jobs.size(); ++m) {
    const double own = jobs * view.jobs[m].scale, at_most = std::max(1.0, total / own);
    for (size_t j = 0; j < types; ++j) result[m] += speeds[m * types + j] * view.types[j].devices / own / at_most;
  }
  return result;
}

ShareProblem share_problem(const ClusterView& view, const std::vector<double>& speeds,
                           const std::vector<double>& factor) {
  ShareProblem problem;
  problem.types = view.types.size();
  problem.jobs = view.jobs.size();
  for (const auto& type : view.types) problem.capacity.push_back(type.devices);
  problem.base.assign(problem.jobs, 0);
  problem.gain.assign(problem.jobs, 0);
  problem.value.resize(problem.jobs * problem.types);
  for (size_t m = 0; m < problem.jobs; ++m) {
    problem.scale.push_back(view.jobs[m].scale);
    problem.key.push_back(static_cast<uint64_t>(view.jobs[m].id));
    for (size_t j = 0; j < problem.types; ++j) {
      const size_t at = m * problem.types + j;
      // A type with fewer devices than the job needs is of no use to it, whatever the shares say.
      const bool fits = view.reference || view.jobs[m].scale <= view.types[j].devices;
      problem.value[at] = fits ? speeds[at] * factor[m] : 0;
    }
  }
  problem.value_first = view.throughput_first;
  problem.value_second = view.throughput_second;
  for (size_t c = 0; c < view.pairs.size(); ++c) {
    const auto [first, second] = view.pairs[c];
    if (view.jobs[first].scale != view.jobs[second].scale)
      refuse("jobs {} and {} cannot share devices: their scales differ", view.jobs[first].id, view.jobs[second].id);
    problem.pairs.push_back({first, second});
    for (size_t j = 0; j < problem.types; ++j) {
      const bool fits = view.jobs[first].scale <= view.types[j].devices;
      problem.value_first[c * problem.types + j] *= fits ? factor[first] : 0;
      problem.value_second[c * problem.types + j] *= fits ? factor[second] : 0;
    }
  }
  return problem;
}

bool nothing_to_share(const ClusterView& view) {
  const size_t types = view.types.size();
  for (size_t i = 0; i < view.throughput.size(); ++i) {
    const int needed = view.reference ? 1 : view.jobs[i / types].scale;
    if (view.throughput[i] > 0 && view.types[i % types].devices >= std::max(1, needed)) return false;
  }
  return true;
}

Allocation no_shares(const ClusterView& view) {
  const size_t types = view.types.size();
  return {std::vector<double>(view.jobs.size() * types, 0), std::vector<double>(view.pairs.size() * types, 0)};
}

bool can_run(const ShareProblem& problem, size_t job) {
  const double* row = &problem.value[job * problem.types];
  for (size_t j = 0; j < problem.types; ++j) {
    if (row[j] > 0 && problem.capacity[j] > 0) return true;
  }
  return false;
}

ShareProblem::Cost tie_costs(const ClusterView& view, const ShareProblem& problem) {
  const size_t types = problem.types;
  ShareProblem::Cost cost;
  cost.alone.assign(problem.jobs * types, 0);
  cost.paired.assign(problem.pairs.size() * types, 0);
  std::vector<double> fastest(problem.jobs, 0);
  std::vector<uint8_t> away(problem.jobs * types, 0);  // whether the type would be new to the job
  for (size_t m = 0; m < problem.jobs; ++m) {
    const double* held = view.held.empty() ? nullptr : &view.held[m * types];
    const bool settled = held && std::any_of(held, held + types, [](double share) { return share > 1e-9; });
    fastest[m] = *std::max_element(&problem.value[m * types], &problem.value[m * types] + types);
    for (size_t j = 0; j < types; ++j) {
      const size_t at = m * types + j;
      away[at] = settled && held[j] <= 1e-9;
      const double speed = fastest[m] > 0 ? problem.value[at] / fastest[m] : 0;
      cost.alone[at] = problem.scale[m] * (migration_weight * away[at] - throughput_weight * speed +
                                           identity_weight * identity_number(view.jobs[m].id, j));
    }
  }
  for (size_t c = 0; c < problem.pairs.size(); ++c) {
    const auto [first, second] = problem.pairs[c];
    const int64_t id = view.jobs[first].id * 1000003 + view.jobs[second].id;
    for (size_t j = 0; j < types; ++j) {
      const size_t at = c * types + j;
      const double speed = (fastest[first] > 0 ? problem.value_first[at] / fastest[first] : 0) +
                           (fastest[second] > 0 ? problem.value_second[at] / fastest[second] : 0);
      const double moved = away[first * types + j] + away[second * types + j];
      cost.paired[at] = problem.scale[first] * (migration_weight * moved - throughput_weight * speed +
                                                identity_weight * identity_number(id, j));
    }
  }
  return cost;
}

ShareSolution ShareSolver::solve(const ClusterView& view, const ShareProblem& problem) {
  if (view.reference) {
    const Pool pool(problem);
    auto solution = problem.curved ? center_of_optima(pool.problem()) : embedded_optimum(pool.problem());
    // Where the optima have hardly any inside, the more careful of the two still finds it.
    if (!keep_rules(pool.problem(), solution)) solution = center_of_optima(pool.problem());
    if (!keep_rules(pool.problem(), solution)) {
      fail("the interior-point method found no optimum for {} jobs on {} types", problem.jobs, problem.types);
    }
    return pool.spread(solution);
  }
  if (speeds_ != Speeds::known) {
    const Pool pool(problem);
    auto solution = center_of_optima(pool.problem());
    if (keep_rules(pool.problem(), solution)) return pool.spread(solution);
  }
  if (problem.pairs.empty()) return prices_.solve(problem);
  const Pool pool(problem);
  return pool.spread(programs_.solve(pool.problem()));
}

ShareSolution ShareSolver::level_of(const ShareProblem& problem) {
  if (problem.pairs.empty()) return level_prices_.solve(problem);
  const Pool pool(problem);
  return pool.spread(level_programs_.solve(pool.problem()));
}

Allocation to_allocation(ShareSolution solution) {
  for (auto* shares : {&solution.alone, &solution.paired}) {
    for (auto& share : *shares) share = std::clamp(share, 0.0, 1.0);
  }
  return {std::move(solution.alone), std::move(solution.paired)};
}

}  // namespace trireme::fleet
