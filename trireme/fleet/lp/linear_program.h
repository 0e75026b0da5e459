// A thin layer over COIN-OR Clp: columns ≥ 0 with costs, rows with bounds, the least cost. Solving again after changes
// goes on from the last basis. Where Clp is missing, making a LinearProgram says what to install.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace trireme::fleet {

class LinearProgram {
 public:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  struct Entry {
    int row = 0;
    double factor = 0;
  };

  LinearProgram();
  ~LinearProgram();

  // Rows come first; columns then name the rows that they stand in.
  int add_row(double lower, double upper);
  int add_column(double lower, double upper, double cost, std::span<const Entry> entries);

  void set_row(int row, double lower, double upper);
  void set_cost(int column, double cost);

  // A basis of another program of this class: the states of its columns and rows, in their order.
  enum class State : uint8_t { free = 0, basic = 1, upper = 2, lower = 3 };
  struct Basis {
    std::vector<State> columns, rows;
  };
  Basis basis() const;
  void start_from(const Basis& basis);

  // Whether there is an optimum; the answers below are those of the last solve.
  bool minimize();
  double cost() const;
  double value(int column) const;
  double row_price(int row) const;  // how the least cost changes with the row's bounds
  double reduced_cost(int column) const;
  void close_worse();  // fixes the columns and rows that would make the last optimum worse if they moved

 private:
  struct Model;
  std::unique_ptr<Model> model_;
};

// The same problem for Clp, pairs included.
struct ShareProblem;
struct ShareSolution;
class ClpShareSolver {
 public:
  ClpShareSolver();
  ~ClpShareSolver();
  // Goes on from the basis of the last problem, for the jobs that it knows again.
  ShareSolution solve(const ShareProblem& problem);

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace trireme::fleet
