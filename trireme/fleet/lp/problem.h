// The linear program behind most policies, over dense arrays. Job m gets shares of time X_mj on types j:
//
//   maximise L   subject to   Σ_j a_mj X_mj ≥ r_m + L g_m,   Σ_j X_mj ≤ 1,   Σ_m s_m X_mj ≤ W_j,   X ≥ 0
//
// or, without a level L, only what r_m demands. Of all optima the one is taken that is best by a list of costs, the
// first counting most. A pair of jobs that share their devices is a row of X too: it counts once in the devices' rows,
// and in the rows of both of its jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::fleet {

struct ShareProblem {
  size_t types = 0, jobs = 0;
  std::vector<double> capacity;    // [J]: W_j
  std::vector<double> scale;       // [M]: s_m
  std::vector<double> value;       // [M × J]: a_mj; 0 = never
  std::vector<double> base, gain;  // [M]: r_m, g_m ≥ 0
  bool raises_level = true;        // whether there is an L

  // r and g are those of a curve at its optimum: --reference then wants the centre of what is as good.
  bool curved = false;

  // Costs, each minimised among the optima of all before it: [M × J], and [C × J] of pairs.
  struct Cost {
    std::vector<double> alone, paired;
  };
  std::vector<Cost> costs;

  struct Pair {
    int first = 0, second = 0;
  };
  std::vector<Pair> pairs;                        // C of them, of jobs with equal s; first = second in a pool
  std::vector<double> value_first, value_second;  // [C × J]

  // Jobs that are alike in everything may be one row: X is then the sum of `count` of them, and so are r and g.
  std::vector<double> count;       // [M], or empty: 1 each
  std::vector<double> pair_count;  // [C], or empty: 1 each

  // [M], or empty: by what a job is known again in the next problem, for solvers that go on from the last one.
  std::vector<uint64_t> key;

  size_t row_of(size_t job) const { return job * types; }
  double copies(size_t job) const { return count.empty() ? 1 : count[job]; }
  double pair_copies(size_t pair) const { return pair_count.empty() ? 1 : pair_count[pair]; }
  // A pair can run on a type when both of its jobs make progress there.
  bool pair_runs(size_t pair, size_t type) const {
    return value_first[pair * types + type] > 0 && value_second[pair * types + type] > 0;
  }
};

struct ShareSolution {
  bool feasible = false;
  double level = 0;            // L
  std::vector<double> alone;   // [M × J]
  std::vector<double> paired;  // [C × J]
  // [M]: how much L would fall if r_m rose: above 0 only for jobs that hold everybody back.
  std::vector<double> pressure;
};

}  // namespace trireme::fleet
