#include "trireme/fleet/simulation.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::fleet {

namespace {

// A window that is never done, because the policy leaves some of its jobs waiting, ends somewhere.
int64_t most_generated(const Workload& workload) {
  return workload.count > 0 ? workload.count : std::max<int64_t>(10'000, 10 * workload.window.second);
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::unique_ptr<JobSource> source_of(const Workload& workload, const Throughputs& table) {
  if (!workload.generator) return from_list(workload.jobs);
  return from_generator(*workload.generator, table, most_generated(workload));
}

SimulatedWorldOptions world_options(const SimulationOptions& options, const Workload& workload) {
  SimulatedWorldOptions world;
  world.reference = options.scheduler.reference;
  world.restart_s = options.scheduler.reference ? 0 : options.restart_s;
  world.failures = options.failures;
  world.endless = workload.generator && (options.scheduler.reference || workload.count == 0);
  return world;
}

// Between two neighbours where it falls between them, as numpy does it.
double percentile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return 0;
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const double above = sorted[std::min(below + 1, sorted.size() - 1)];
  return sorted[below] + (above - sorted[below]) * (place - static_cast<double>(below));
}

}  // namespace

Simulation::Simulation(const Cluster& cluster, const Throughputs& table, const Workload& workload,
                       const SimulationOptions& options)
    : cluster_(cluster),
      workload_(workload),
      options_(options),
      scheduler_(cluster, table, options.scheduler),
      world_(cluster, table, source_of(workload, table), world_options(options, workload)) {
  if (options.scheduler.reference && options.failures.any()) {
    refuse("--reference knows no failures of devices: leave out one of the two");
  }
  scheduler_.set_owners(workload.owners);
  scheduler_.ledger().keep_samples = options.keep_samples;
  scheduler_.ledger().keep_spans = options.keep_spans;
}

bool Simulation::done() {
  const auto& jobs = scheduler_.ledger().jobs;
  const auto [first, last] = workload_.window;
  if (last > first) {
    const auto is_done = [&](int64_t id) {
      return id < static_cast<int64_t>(jobs.size()) &&
             jobs[static_cast<size_t>(id)].outcome != JobRecord::Outcome::waiting;
    };
    window_done_ = std::max(window_done_, first);
    while (window_done_ < last && is_done(window_done_)) ++window_done_;
    return window_done_ == last;
  }
  const int64_t all = workload_.generator ? workload_.count : static_cast<int64_t>(workload_.jobs.size());
  return scheduler_.ended() == all;
}

// Jobs whose devices fail before a round ends, or that are restarted for longer than a round, may begin for ever anew.
void Simulation::check_progress() const {
  constexpr int64_t most_leases = 1000;
  constexpr double most_rounds = 100;  // one failure may end very many leases at once
  const auto& [leases, lost, since_s] = world_.fruitless();
  const double round_s = options_.scheduler.round_s, passed_s = scheduler_.now_s() - since_s;
  if (options_.scheduler.reference || leases < most_leases || passed_s < most_rounds * round_s) return;
  refuse(
      "no job has kept a step since {:.0f} s, now at {:.0f} s: {} leases in a row ended before that, {} of them by "
      "failures. A round lasts {} s and a restart {} s: give longer mean times in --failures, or a --round-s that is "
      "well above --restart-s",
      since_s, scheduler_.now_s(), leases, lost, round_s, options_.restart_s);
}

void Simulation::turn() {
  scheduler_.turn(world_);
  if (scheduler_.stuck()) fail("{}", scheduler_.why_stuck());
  check_progress();
  const auto drawn = static_cast<int64_t>(scheduler_.ledger().jobs.size());
  if (workload_.generator && workload_.count == 0 && drawn >= most_generated(workload_)) {
    fail(
        "{} jobs were drawn, and those of the window are not done: policy {} leaves some of them waiting at this load; "
        "--jobs N ends with the N-th job instead",
        drawn, options_.scheduler.policy);
  }
}

void Simulation::run_until(double at_s) {
  while (!done() && scheduler_.now_s() < at_s) turn();
}

SimulationResult Simulation::run(const std::function<void()>& after_turn) {
  const double begin_s = cpu_seconds();
  while (!done()) {
    turn();
    if (after_turn) after_turn();
  }
  auto outcome = result();
  outcome.cpu_s = cpu_seconds() - begin_s;
  return outcome;
}

SimulationResult Simulation::result() const {
  SimulationResult result;
  result.policy = options_.scheduler.policy;
  result.ledger = scheduler_.ledger();
  result.ledger.restart_s = world_.restart_total_s();
  result.ledger.lost_steps_s = world_.lost_total_s();
  result.end_s = scheduler_.now_s();
  const auto& jobs = result.ledger.jobs;
  const bool windowed = workload_.window.second > workload_.window.first;
  const size_t first = windowed ? static_cast<size_t>(workload_.window.first) : 0;
  const size_t last = windowed ? static_cast<size_t>(workload_.window.second) : jobs.size();
  std::vector<double> times;
  for (size_t id = first; id < last; ++id) {
    const auto& job = jobs[id];
    result.rejected += job.outcome == JobRecord::Outcome::rejected;
    result.dropped += job.outcome == JobRecord::Outcome::dropped;
    if (job.outcome != JobRecord::Outcome::finished) continue;
    ++result.finished;
    result.with_deadline += job.has_deadline;
    result.missed_deadlines += job.missed_deadline;
    result.counted.push_back(static_cast<int64_t>(id));
    times.push_back(job.completion_s());
    result.worst_unfairness = std::max(result.worst_unfairness, job.unfairness());
  }
  for (const auto& job : jobs) {
    result.preemptions += job.preemptions;
    result.cost += job.cost;
  }
  if (!times.empty())
    result.mean_jct_s = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  std::sort(times.begin(), times.end());
  result.median_jct_s = percentile(times, 0.5);
  result.p95_jct_s = percentile(times, 0.95);
  result.p99_jct_s = percentile(times, 0.99);
  const auto& busy = result.ledger.busy_s;
  if (result.end_s > 0) {
    result.utilisation =
        std::accumulate(busy.begin(), busy.end(), 0.0) / result.end_s / static_cast<double>(busy.size());
  }
  return result;
}

nlohmann::ordered_json SimulationResult::json(bool with_jobs) const {
  nlohmann::ordered_json json{{"policy", policy},
                              {"mean_jct_s", mean_jct_s},
                              {"median_jct_s", median_jct_s},
                              {"p95_jct_s", p95_jct_s},
                              {"p99_jct_s", p99_jct_s},
                              {"makespan_s", end_s},
                              {"utilisation", utilisation},
                              {"worst_finish_time_fairness", worst_unfairness},
                              {"cost", cost},
                              {"preemptions", preemptions},
                              {"finished", finished},
                              {"rejected", rejected},
                              {"dropped", dropped},
                              {"missed_deadlines", missed_deadlines},
                              {"rounds", ledger.rounds},
                              {"solves", ledger.solves},
                              {"device_losses", ledger.device_losses},
                              {"solver_s", ledger.solver_s},
                              {"cpu_s", cpu_s}};
  if (with_jobs) {
    // Appended as to a list: names are unique, and looking for each would take quadratic time.
    nlohmann::ordered_json::object_t times;
    for (int64_t id : counted) {
      const auto& job = ledger.jobs[static_cast<size_t>(id)];
      static_cast<nlohmann::ordered_json::object_t::Container&>(times).emplace_back(job.name, job.completion_s());
    }
    json["jct_s"] = std::move(times);
  }
  return json;
}

}  // namespace trireme::fleet
