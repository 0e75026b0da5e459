// The matrix A D Aᵀ + S of an interior-point step for ShareProblem: rows of jobs (a demand and a time each), then of
// devices. Without pairs the rows of different jobs do not meet, and everything is solved by J × J and 2 × 2 matrices.
#pragma once

#include <vector>

#include "trireme/fleet/lp/problem.h"

namespace trireme::fleet {

// A column of A: at most two jobs and one type.
struct ShareColumn {
  int first = 0, second = -1, type = 0;  // second: -1 for a job alone
  double value_first = 0, value_second = 0;
  double time_first = 1, time_second = 0;  // in the jobs' rows of time
  double devices = 1;
};

// Rows: 2 m a job's demand (with −value), 2 m + 1 its time, 2 M + j a type's devices.
struct ShareMatrix {
  size_t jobs = 0, types = 0;
  bool paired = false;
  std::vector<ShareColumn> columns;

  size_t rows() const { return 2 * jobs + types; }
  void add_product(const std::vector<double>& x, std::vector<double>& result) const;  // += A x
  double column_product(size_t column, const std::vector<double>& y) const;           // (Aᵀ y)_k
};

class NormalMatrix {
 public:
  explicit NormalMatrix(const ShareMatrix& matrix);
  void factor(const std::vector<double>& column_weight, const std::vector<double>& row_weight);
  void solve(std::vector<double>& right) const;  // in place

 private:
  void gather(const std::vector<double>& column_weight, const std::vector<double>& row_weight);
  void solve_inner(double* right) const;

  const ShareMatrix& matrix_;
  size_t inner_;
  std::vector<double> blocks_;  // without pairs: [M × 3], the inverses of the jobs' 2 × 2 matrices
  std::vector<double> determinants_;
  std::vector<double> dense_;   // with pairs: [2 M × 2 M], lower triangle
  std::vector<double> across_;  // [J × 2 M]
  std::vector<double> across_solved_;
  std::vector<double> devices_;  // [J × J]
};

}  // namespace trireme::fleet
