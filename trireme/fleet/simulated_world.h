// A world that is only computed: jobs take steps as the table of throughputs says, time jumps from event to event.
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "trireme/fleet/failures.h"
#include "trireme/fleet/jobs.h"
#include "trireme/fleet/throughputs.h"
#include "trireme/fleet/world.h"

namespace trireme::fleet {

// Where simulated jobs come from, one after the other.
class JobSource {
 public:
  virtual ~JobSource() = default;
  virtual double next_arrival_s() const = 0;  // infinity when there are no more
  virtual Job next() = 0;
};

std::unique_ptr<JobSource> from_list(const std::vector<Job>& jobs);  // which must outlive it
// At most `most` jobs.
std::unique_ptr<JobSource> from_generator(const JobGenerator::Options& options, const Throughputs& table, int64_t most);

struct SimulatedWorldOptions {
  double restart_s = 0;  // from a checkpoint, before the first step
  FailureOptions failures;
  bool reference = false;  // a lease of two jobs lasts until both have taken their steps, not the first
  bool endless = false;    // the source never says that nothing more will come
};

class SimulatedWorld final : public World {
 public:
  SimulatedWorld(const Cluster& cluster, const Throughputs& table, std::unique_ptr<JobSource> source,
                 const SimulatedWorldOptions& options);

  void start(const Round& round, size_t first) override;
  void wait(double until_s, bool wake_early, Happening& happening) override;

  double restart_total_s() const { return restart_total_s_; }
  double lost_total_s() const { return lost_total_s_; }

  // Leases that have ended without a step since the last one of which a step was kept.
  struct Fruitless {
    int64_t leases = 0, lost = 0;  // in all, and by failures
    double since_s = 0;
  };
  const Fruitless& fruitless() const { return fruitless_; }

 private:
  struct Running {
    double first_step_s = 0;
    double rates[2] = {0, 0};
    double done_s[2] = {0, 0};  // when each job has taken its steps
    double finish_s = 0;        // when the lease is over, if nothing ends it earlier
    bool runs = true;
  };
  using Finish = std::pair<double, int>;

  double next_event_s() const;
  void end_round(double until_s, Happening& happening);
  void end(int lease, double at_s, bool device_lost, Happening& happening);
  void lose_devices(Happening& happening);

  const Throughputs& table_;
  std::unique_ptr<JobSource> source_;
  SimulatedWorldOptions options_;
  Failures failures_;
  double now_s_ = 0;
  const Round* round_ = nullptr;
  std::vector<Running> running_;
  int runs_ = 0;
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes_;
  std::vector<int> lease_on_;  // by device, -1: none
  double restart_total_s_ = 0, lost_total_s_ = 0;
  Fruitless fruitless_;
};

}  // namespace trireme::fleet
