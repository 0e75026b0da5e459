// A simplex method for ShareProblem without pairs that keeps only what couples the jobs: one price a device type.
//
// Each job has two rows of its own (its time, its demand), so two of its columns, its keys, are always in the basis.
// What is left of the basis is J × J, whatever the number of jobs. A step costs O(J²), looking at every job once O(M
// J): the least that any method must read. At given prices a job's best answer is a small calculation of its own, so a
// solve starts from prices (the last ones, or those of a sample of the jobs) instead of from a basis.
//
// The level is found by Newton's method on v(L), the factor by which all devices would have to be more to reach L: v is
// convex and piecewise linear, its slope comes with the prices, and the steps end at v(L) = 1 exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/fleet/lp/problem.h"

namespace trireme::fleet {

class PriceSolver {
 public:
  PriceSolver();
  ~PriceSolver();

  // Starts from the prices and the level of the last call. The solution is the same as without them.
  ShareSolution solve(const ShareProblem& problem);

  int64_t steps() const;  // simplex steps of the last call

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace trireme::fleet
