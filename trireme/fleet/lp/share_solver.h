// What the policies that solve linear programs have in common: which speeds they believe in, the problem's arrays from
// a ClusterView, how ties between optima are broken, and which solver answers.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/lp/prices.h"
#include "trireme/fleet/lp/problem.h"
#include "trireme/fleet/policies.h"

namespace trireme::fleet {

// Which speeds a policy believes in: the true ones; or, agnostic of types, 1 everywhere, or the job's fastest
// everywhere.
enum class Speeds { known, equal, fastest };

// [M × J], 0 where the job cannot run. The reference's agnostic policies believe that every job runs everywhere.
std::vector<double> believed_speeds(const ClusterView& view, Speeds speeds);

// Σ_j T_mj X_mj for two fixed splits of the cluster: time in proportion to the devices of a type (W_j / ΣW), and an own
// nth of every type's devices (W_j / (n s_m), at most all of the time).
std::vector<double> proportional_speeds(const ClusterView& view, const std::vector<double>& speeds);
std::vector<double> isolated_speeds(const ClusterView& view, const std::vector<double>& speeds);

// The constraints that every policy has. A job's value on a type is its speed times `factor`; r and g are 0.
ShareProblem share_problem(const ClusterView& view, const std::vector<double>& speeds,
                           const std::vector<double>& factor);

// Whether any job could run on a device that is there. Where none can, an answer is all zeros.
bool nothing_to_share(const ClusterView& view);
Allocation no_shares(const ClusterView& view);

// Whether the job has a type to run on.
bool can_run(const ShareProblem& problem, size_t job);

// How ties are broken: most throughput (each job's against its fastest), then least migration (time on types where the
// job holds nothing, unless it holds nothing at all), then by a number made of the job's id.
ShareProblem::Cost tie_costs(const ClusterView& view, const ShareProblem& problem);

// Answers ShareProblems of one policy, one after the other: without pairs the price solver; with pairs Clp, for pools
// of alike jobs; in --reference the methods that end inside the optima, as the published policies' solver does. To a
// policy that is agnostic of types they all look alike, and a corner of the optima would tie a job to one of them by
// chance: it gets the centre, where every job visits all of them.
class ShareSolver {
 public:
  explicit ShareSolver(Speeds speeds) : speeds_(speeds) {}
  ShareSolution solve(const ClusterView& view, const ShareProblem& problem);
  // A level, or whether demands can be met, without the rest.
  ShareSolution level_of(const ShareProblem& problem);

 private:
  const Speeds speeds_;
  PriceSolver prices_, level_prices_;
  ClpShareSolver programs_, level_programs_;
};

// Alike jobs as one: every job of a class has the same scale, demands, values, and the same values with partners of any
// class. Where pairs do not allow that, every job is its own class.
class Pool {
 public:
  explicit Pool(const ShareProblem& problem);
  const ShareProblem& problem() const { return pooled_; }
  // Shares of the classes, spread evenly over their jobs.
  ShareSolution spread(const ShareSolution& pooled) const;

 private:
  bool classify_pairs(const ShareProblem& problem);
  void classify_jobs(const ShareProblem& problem, bool alone);
  void sum_up(const ShareProblem& problem);

  size_t jobs_ = 0, types_ = 0;
  std::vector<int> class_of_, class_of_pair_;
  std::vector<uint8_t> swapped_;  // whether a pair's first job is of the class's second
  ShareProblem pooled_;
};

Allocation to_allocation(ShareSolution solution);

}  // namespace trireme::fleet
