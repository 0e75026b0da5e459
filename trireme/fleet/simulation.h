// One policy on one workload, from the first arrival to the last job's end, in simulated time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/fleet/jobs.h"
#include "trireme/fleet/ledger.h"
#include "trireme/fleet/scheduler.h"
#include "trireme/fleet/simulated_world.h"

namespace trireme::fleet {

// A list of jobs, or the generator's: so many of them, or without end until those of the window are done.
struct Workload {
  std::vector<Job> jobs;
  std::vector<Owner> owners;  // of which something is known
  std::optional<JobGenerator::Options> generator;
  int64_t count = 0;                         // of generated jobs; 0: as many as the window needs
  std::pair<int64_t, int64_t> window{0, 0};  // [first, last): whose completion times count; empty: all
  std::string name;
};

struct SimulationOptions {
  SchedulerOptions scheduler;
  double restart_s = 10;
  FailureOptions failures;
  bool keep_samples = false;
  std::pair<double, double> keep_spans{0, 0};
};

struct SimulationResult {
  std::string policy;
  Ledger ledger;
  std::vector<int64_t> counted;  // ids of the jobs whose completion times count
  double end_s = 0;
  double mean_jct_s = 0, median_jct_s = 0, p95_jct_s = 0, p99_jct_s = 0;
  double worst_unfairness = 0;
  double utilisation = 0;
  double cost = 0;
  int64_t finished = 0, rejected = 0, dropped = 0, missed_deadlines = 0, with_deadline = 0;
  int64_t preemptions = 0;
  double cpu_s = 0;

  nlohmann::ordered_json json(bool with_jobs) const;
};

// A simulation that can be looked at on its way. The cluster, the table (select()ed for the cluster) and the workload
// must outlive it.
class Simulation {
 public:
  Simulation(const Cluster& cluster, const Throughputs& table, const Workload& workload,
             const SimulationOptions& options);

  bool done();
  void turn();
  void check_progress() const;
  void run_until(double at_s);
  SimulationResult run(const std::function<void()>& after_turn = {});
  Scheduler& scheduler() { return scheduler_; }

 private:
  SimulationResult result() const;

  const Cluster& cluster_;
  const Workload& workload_;
  SimulationOptions options_;
  Scheduler scheduler_;
  SimulatedWorld world_;
  int64_t window_done_ = 0;  // jobs of the window before this one are done
};

}  // namespace trireme::fleet
