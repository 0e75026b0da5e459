// The round mechanism. It admits jobs, asks the policy for shares of time when jobs came or went, and in every round
// hands out leases so that the time received approaches the shares. It acts on a World and does not know whether that
// is simulated.
//
// `reference` follows the published simulator to the letter: rounds end with their last step, jobs that the policy has
// not seen wait even beside idle devices, bringing a job back is free, and what cannot run is an error. Otherwise
// rounds have their length, idle devices are used at once, and impossible jobs are rejected when they are submitted.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/fleet/ledger.h"
#include "trireme/fleet/placement.h"
#include "trireme/fleet/policy.h"
#include "trireme/fleet/python_random.h"
#include "trireme/fleet/share_book.h"
#include "trireme/fleet/throughputs.h"
#include "trireme/fleet/world.h"

namespace trireme::fleet {

struct SchedulerOptions {
  std::string policy;
  bool reference = false;
  uint64_t seed = 0;
  double round_s = 360;
  double solve_every_s = 1920;  // at least so long between two questions to the policy
};

class Scheduler {
 public:
  // The cluster and the table, whose columns are the cluster's types, must outlive the scheduler.
  Scheduler(const Cluster& cluster, const Throughputs& table, const SchedulerOptions& options);

  // What is known of owners; others have a weight of 1 and divide fairly.
  void set_owners(std::vector<Owner> owners) { owners_ = std::move(owners); }

  // Waits for the world once, takes in what happened, and starts what is to run now.
  void turn(World& world);

  double now_s() const { return now_s_; }
  const Round& round() const { return round_; }  // the leases of the round that runs, or has just ended
  bool usable(int device) const { return placement_.usable(device); }
  size_t active() const { return jobs_.size(); }
  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  int64_t ended() const { return ended_; }  // jobs that finished, were rejected or dropped

  // Nothing runs, nothing is to come, and jobs wait: names them and why they can never run.
  bool stuck() const { return idle_turns_ >= 2; }
  std::string why_stuck() const;

  // Why a job holds what it holds now.
  struct Explanation {
    struct OnType {
      std::string type;
      double rate = 0, share = 0, received_s = 0, deficit_s = 0, priority = 0;
      int rank = 0, candidates = 0;  // its place among those that could run there, from 1
    };
    int64_t id = 0;
    std::string name, job_type;
    int scale = 1;
    double steps_left = 0, age_s = 0;
    bool solved = false;        // the policy has seen it
    std::vector<int> devices;   // that it holds
    std::string held_type;      // of these
    std::string partner;        // with whom it shares them
    std::vector<OnType> types;  // in the order in which they are handed out
    std::string sentence;
  };
  std::vector<Explanation> explain();

 private:
  struct Active {
    int64_t id = 0;
    int kind = 0, scale = 1, entity = 0;
    double weight = 1, arrival_s = 0, deadline_at_s = 0;
    double steps = 0, done = 0;
    double isolated_s = 0, isolated_rate = 0, done_at_solve = 0;
    double service_s = 0;
    int failures = 0;
    int lease = -1;        // in the round, or while the next one is made in the round before; -1 without
    int next_lease = -1;   // in the round that is being made
    bool started = false;  // has run at some time
    bool leaving = false;

    double left() const { return steps - done; }
  };

  // scheduler.cpp: what happened
  void take_ended();
  void take_ended_as_reference(const Ended& ended, const Lease& lease);
  void take_ended_as_measured(const Ended& ended, const Lease& lease);
  void credit(const Lease& lease, const Ended& ended, double seconds);
  void finish(Active& job, double at_s, JobRecord::Outcome outcome);
  void take_devices();
  void remove_leaving();
  size_t place_of(int64_t id) const;
  bool is_active(int64_t id) const;

  // admission.cpp: who may come in
  void submit(const Job& job);
  void refuse_unknown(const Job& job) const;
  std::string impossible(const Job& job, int kind) const;
  double rate_on(const Job& job, int kind, size_t type) const;
  void add_rows(int place);

  // ask_policy.cpp: who should have what
  void solve_if_due();
  void solve();
  void view_jobs(const std::vector<size_t>& job_rows);
  void view_pairs(std::vector<size_t>& pair_rows);
  void take_allocation(const Allocation& allocation, const std::vector<size_t>& job_rows,
                       const std::vector<size_t>& pair_rows);
  double isolated_rate(size_t row, int scale) const;

  // rounds.cpp: what is to run
  void choose_type_order();
  void begin_round();
  void fill_idle();
  void choose(bool only_waiting);
  std::span<const int> held_by(const ShareBook::Row& row, int type, bool only_waiting) const;
  bool same_jobs(const Lease& lease, const ShareBook::Row& row) const;
  void lease_out(const Wish& wish, int type);
  void count_extensions();
  int running_jobs() const;
  void sample();
  void keep_span(const Lease& lease, const Ended& ended);
  std::string sentence_about(const Explanation& explanation) const;  // explain.cpp

  const Cluster& cluster_;
  const Throughputs& table_;
  SchedulerOptions options_;
  const PolicyInfo& info_;
  std::unique_ptr<Policy> policy_;
  PythonRandom type_shuffler_;

  double now_s_ = 0, round_begin_s_ = 0, round_end_s_ = 0;
  bool any_round_ended_ = false;
  double last_reset_s_ = 0;
  bool jobs_changed_ = true, devices_changed_ = false, any_leaving_ = false;
  bool more_to_come_ = true;
  int idle_turns_ = 0;  // in which nothing ran and nothing was to come
  int64_t ended_ = 0;
  int demand_ = 0;  // devices that all jobs together want

  std::vector<Active> jobs_;  // by id
  std::vector<Owner> owners_;
  ShareBook book_;
  Placement placement_;

  Round round_, before_;
  int running_ = 0;  // leases of the round that have not ended
  std::vector<double> lease_began_s_;
  std::vector<int> lease_rows_;
  std::vector<char> lease_runs_;
  std::vector<int> type_order_;

  Happening happening_;
  ClusterView view_;
  Ledger ledger_;

  // Space that is used again and again.
  std::vector<int> visited_types_, new_place_;
  std::vector<char> taken_;
  std::vector<Wish> wishes_;
  std::vector<double> rates_;
};

}  // namespace trireme::fleet
