#include "trireme/fleet/bench_fleet.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>

#include "trireme/base/error.h"
#include "trireme/base/statistics.h"
#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/lp/share_solver.h"
#include "trireme/fleet/lp/prices.h"

namespace trireme::fleet {

namespace {

double cpu_s() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double seconds_of(const Work& work) {
  const double begin = cpu_s();
  work();
  return cpu_s() - begin;
}

// Jobs of 1, 2, 4 and 8 devices as in the published traces, speeds that differ by type up to twenty times.
class Case {
 public:
  Case(int jobs, int types, double load, uint64_t seed) : random_(seed) {
    for (int m = 0; m < jobs; ++m) {
      PolicyJob job;
      const double dice = uniform();
      job.id = m;
      job.scale = dice < 0.7 ? 1 : dice < 0.8 ? 2 : dice < 0.95 ? 4 : 8;
      view_.jobs.push_back(job);
      wanted_ += job.scale;
      for (int j = 0; j < types; ++j) view_.throughput.push_back(speed());
    }
    for (int j = 0; j < types; ++j) {
      view_.types.push_back({"type", std::max(8, static_cast<int>(wanted_ / load / types * (0.5 + uniform()))), 1});
    }
  }

  // Some jobs leave, as many come.
  void change(int count) {
    const size_t types = view_.types.size();
    for (int i = 0; i < count; ++i) {
      const size_t m = random_() % view_.jobs.size();
      view_.jobs[m].id += static_cast<int64_t>(view_.jobs.size());
      for (size_t j = 0; j < types; ++j) {
        view_.throughput[m * types + j] = speed();
        if (!view_.held.empty()) view_.held[m * types + j] = 0;
      }
    }
  }

  void hold(const std::vector<double>& shares) { view_.held = shares; }

  ShareProblem problem() const {
    auto factor = proportional_speeds(view_, view_.throughput);
    for (size_t m = 0; m < factor.size(); ++m) factor[m] = view_.jobs[m].scale / factor[m];
    auto problem = share_problem(view_, view_.throughput, factor);
    problem.gain.assign(problem.jobs, 1);
    problem.costs = {tie_costs(view_, problem)};
    return problem;
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double speed() { return std::exp(3 * uniform()); }

  std::mt19937_64 random_;
  ClusterView view_;
  double wanted_ = 0;
};

void check_equal(const ShareSolution& ours, const ShareSolution& peer, const std::string& where) {
  if (!ours.feasible || !peer.feasible || std::abs(ours.level - peer.level) > 1e-9 * peer.level) {
    fail("{}: the price solver reaches {}, Clp {}", where, ours.level, peer.level);
  }
}

double floor_s(const ShareProblem& problem) {
  std::vector<double> shares(problem.value.size(), 0.5), times;
  volatile double keep = 0;
  for (int turn = 0; turn < 9; ++turn) {
    times.push_back(seconds_of([&] {
      double least = 1e300;
      for (size_t m = 0; m < problem.jobs; ++m) {
        double sum = 0;
        for (size_t j = 0; j < problem.types; ++j) {
          sum += problem.value[m * problem.types + j] * shares[m * problem.types + j] -
                 problem.costs[0].alone[m * problem.types + j];
        }
        least = std::min(least, sum);
      }
      keep = keep + least;
    }));
  }
  return median(times);
}

void measure(const FleetBenchOptions& options, int jobs, int types, double load,
             const std::function<void(const BenchLine&)>& each) {
  BenchLine cold{
      .bench = "fleet", .bench_case = fmt::format("cold {}x{} load {}", jobs, types, load), .peer_name = "Clp"};
  BenchLine warm = cold;
  warm.bench_case = fmt::format("warm {}x{} load {}", jobs, types, load);
  const int changed = std::max(1, jobs / 256);
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    Case one(jobs, types, load, options.seed + static_cast<uint64_t>(repeat));
    auto problem = one.problem();
    PriceSolver prices;
    ClpShareSolver clp;
    ShareSolution ours, peer;
    alternate(repeat, {[&] { cold.ours.push_back(seconds_of([&] { ours = prices.solve(problem); })); },
                       [&] { cold.peer.push_back(seconds_of([&] { peer = clp.solve(problem); })); }});
    check_equal(ours, peer, cold.bench_case);
    for (int turn = 0; turn < 2; ++turn) {  // the second starts from what a fleet holds
      one.hold(ours.alone);
      one.change(changed);
      problem = one.problem();
      double mine = 0, theirs = 0;
      alternate(repeat, {[&] { mine = seconds_of([&] { ours = prices.solve(problem); }); },
                         [&] { theirs = seconds_of([&] { peer = clp.solve(problem); }); }});
      check_equal(ours, peer, warm.bench_case);
      if (turn > 0) warm.ours.push_back(mine), warm.peer.push_back(theirs);
    }
    cold.floor = warm.floor = floor_s(problem);
  }
  cold.settings = warm.settings = {{"jobs", jobs}, {"types", types}, {"load", load}, {"ties", "broken"}};
  warm.settings["changed_jobs"] = changed;
  each(cold);
  each(warm);
}

}  // namespace

void run_fleet_bench(const FleetBenchOptions& options, const std::function<void(const BenchLine&)>& each) {
  for (int types : options.types) {
    for (int jobs : options.jobs) {
      for (double load : options.loads) measure(options, jobs, types, load, each);
    }
  }
}

}  // namespace trireme::fleet
