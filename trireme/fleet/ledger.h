// What happened to every job and device, as the scheduler saw it: the source of all tables and pictures.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "trireme/fleet/model.h"

namespace trireme::fleet {

struct JobRecord {
  enum class Outcome { waiting, finished, rejected, dropped };  // dropped: failed too often

  std::string name;
  double arrival_s = 0;
  double first_start_s = -1;
  double end_s = -1;
  double isolated_s = 0;      // what its steps would have taken on its own share of the cluster
  double cost = 0;            // of its devices, for as long as it held them
  int preemptions = 0;        // times that it was stopped or moved before it was done
  int demand_at_arrival = 0;  // devices that all jobs wanted then, its own included
  bool has_deadline = false, missed_deadline = false;
  Outcome outcome = Outcome::waiting;
  std::string reason;  // of a rejection

  double completion_s() const { return end_s - arrival_s; }
  // Finish-time fairness: above 1 it took longer than on its own share of the cluster.
  double unfairness() const { return isolated_s > 0 ? completion_s() / isolated_s : 0; }
};

// A lease, for the picture of who ran where.
struct Span {
  double begin_s = 0, end_s = 0;
  int64_t job = 0;
  int64_t partner = -1;
  int device = 0;
};

// A moment of the cluster.
struct Sample {
  double at_s = 0;
  int jobs = 0;  // there, running or not
  int running = 0;
  std::vector<int> busy;  // devices by type
};

struct Ledger {
  std::vector<JobRecord> jobs;  // by id
  std::vector<double> busy_s;   // by device
  int64_t rounds = 0, solves = 0;
  int64_t lease_chances = 0, leases_extended = 0;  // jobs that could have stayed where they were, and that did
  double solver_s = 0;
  int64_t device_losses = 0;
  double lost_steps_s = 0;  // work that was done again because a device was lost, in seconds of its jobs
  double restart_s = 0;     // time that jobs spent on coming back
  int most_jobs = 0;

  // Kept only when somebody will draw them.
  bool keep_samples = false;
  std::pair<double, double> keep_spans{0, 0};  // the window of time of which leases are kept
  std::vector<Sample> samples;
  std::vector<Span> spans;
};

}  // namespace trireme::fleet
