// A policy divides a cluster among jobs: it says which share of its time each job should spend on each type of device.
// It sees dense arrays and nothing else, so the simulator, the service and a test ask it in the same way; the round
// mechanism turns the shares into assignments.
//
// X_mj is the share of time of job m on type j, T_mj its steps a second there, s_m its devices, W_j the devices of a
// type. Every allocation obeys X ≥ 0, Σ_j X_mj ≤ 1 and Σ_m s_m X_mj ≤ W_j. With space sharing a pair of jobs is a row
// too: it counts once in the devices' rows and once in each of its jobs'.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::fleet {

// A job as a policy sees it at one moment.
struct PolicyJob {
  int64_t id = 0;         // ids are given in the order of arrival
  int scale = 1;          // s_m: devices that it takes at once
  double weight = 1;      // priority
  int entity = 0;         // its owner, for hierarchical policies
  double steps_left = 0;  // S_m
  double age_s = 0;       // t_m: since its arrival
  double isolated_s = 0;  // I_m: what its steps so far would have taken on its own share of the cluster
  double deadline_s = std::numeric_limits<double>::infinity();  // from now
  double service_s = 0;                                         // device-seconds received
};

struct PolicyType {
  std::string name;
  int devices = 0;           // W_j
  double cost_per_hour = 0;  // of one device
};

// Two jobs of equal scale that may share their devices. Their steps a second together lie in `throughput_first` and
// `throughput_second` of ClusterView, 0 on types where they do not fit.
struct PolicyPair {
  int first = 0, second = 0;  // indices into jobs, first < second
};

// An owner of jobs, for hierarchical policies: its weight against other owners, and how it divides what it gets.
struct PolicyEntity {
  double weight = 1;
  bool in_order = false;  // its oldest job first, instead of fairly among its jobs
};

struct ClusterView {
  std::vector<PolicyType> types;                            // J of them
  std::vector<PolicyJob> jobs;                              // M of them, by id
  std::vector<double> throughput;                           // [M × J]: T_mj alone; 0 = cannot run there
  std::vector<PolicyPair> pairs;                            // C of them; empty without space sharing
  std::vector<double> throughput_first, throughput_second;  // [C × J]
  std::vector<double> held;            // [M × J]: the last allocation of the jobs that are still there, or empty
  std::vector<PolicyEntity> entities;  // by PolicyJob::entity; empty: jobs have no owners
  bool reference = false;              // --reference: as the original solves it, quirks included

  // Where these two jobs stand among the pairs, which are sorted by their first and then their second; C: nowhere.
  size_t find_pair(size_t a, size_t b) const;
};

// Shares of time: [M × J] of jobs alone and [C × J] of pairs.
struct Allocation {
  std::vector<double> alone;
  std::vector<double> paired;  // empty without space sharing
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Called again whenever jobs came or went; may keep what helps it to be quick the next time.
  virtual Allocation allocate(const ClusterView& view) = 0;
};

// A policy as a person meets it.
struct PolicyInfo {
  std::string name;                  // max-min
  std::vector<std::string> aliases;  // the names of the reference: max_min_fairness, …
  std::string objective;             // in words
  std::string formula;
  bool knows_speeds = false;    // uses T_mj as it is; agnostic ones replace it
  bool shares_devices = false;  // wants pairs
  bool fills_gaps = true;       // jobs without a share may use devices that nobody else wants
  bool shuffles_types = false;  // --reference: types are visited in random order
  bool every_round = false;     // its answer changes with time alone: it is asked at every round
};

// All policies that there are, in the order in which a person reads of them.
const std::vector<PolicyInfo>& policies();

// Throws for an unknown name, with the nearest valid one.
std::unique_ptr<Policy> make_policy(std::string_view name, uint64_t seed);
const PolicyInfo& policy_info(std::string_view name);

}  // namespace trireme::fleet
