#include "trireme/fleet/lp/linear_program.h"

#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>

#include <cmath>

namespace trireme::fleet {

struct LinearProgram::Model {
  ClpSimplex simplex;
  std::vector<double> row_lower, row_upper, column_lower, column_upper, costs, factors;
  std::vector<int> rows;
  std::vector<CoinBigIndex> starts = {0};
  bool loaded = false, started = false;

  void load() {
    if (loaded) return;
    simplex.setLogLevel(0);
    CoinPackedMatrix matrix(true, static_cast<int>(row_lower.size()), static_cast<int>(costs.size()),
                            static_cast<CoinBigIndex>(rows.size()), factors.data(), rows.data(), starts.data(),
                            nullptr);
    simplex.loadProblem(matrix, column_lower.data(), column_upper.data(), costs.data(), row_lower.data(),
                        row_upper.data());
    simplex.setPrimalTolerance(1e-10);
    simplex.setDualTolerance(1e-10);
    loaded = true;
  }
};

LinearProgram::LinearProgram() : model_(std::make_unique<Model>()) {}
LinearProgram::~LinearProgram() = default;

int LinearProgram::add_row(double lower, double upper) {
  model_->row_lower.push_back(std::isinf(lower) ? -COIN_DBL_MAX : lower);
  model_->row_upper.push_back(std::isinf(upper) ? COIN_DBL_MAX : upper);
  return static_cast<int>(model_->row_lower.size()) - 1;
}

int LinearProgram::add_column(double lower, double upper, double cost, std::span<const Entry> entries) {
  model_->column_lower.push_back(std::isinf(lower) ? -COIN_DBL_MAX : lower);
  model_->column_upper.push_back(std::isinf(upper) ? COIN_DBL_MAX : upper);
  model_->costs.push_back(cost);
  for (const auto& entry : entries) {
    model_->rows.push_back(entry.row);
    model_->factors.push_back(entry.factor);
  }
  model_->starts.push_back(static_cast<CoinBigIndex>(model_->rows.size()));
  return static_cast<int>(model_->costs.size()) - 1;
}

void LinearProgram::set_row(int row, double lower, double upper) {
  model_->load();
  model_->simplex.setRowBounds(row, std::isinf(lower) ? -COIN_DBL_MAX : lower,
                               std::isinf(upper) ? COIN_DBL_MAX : upper);
}

void LinearProgram::set_cost(int column, double cost) {
  model_->load();
  model_->simplex.setObjectiveCoefficient(column, cost);
}

LinearProgram::Basis LinearProgram::basis() const {
  auto& simplex = model_->simplex;
  Basis basis;
  const auto state = [](ClpSimplex::Status status) {
    switch (status) {
      case ClpSimplex::basic: return State::basic;
      case ClpSimplex::atUpperBound: return State::upper;
      case ClpSimplex::isFree:
      case ClpSimplex::superBasic: return State::free;
      default: return State::lower;
    }
  };
  for (int i = 0; i < simplex.numberColumns(); ++i) basis.columns.push_back(state(simplex.getColumnStatus(i)));
  for (int i = 0; i < simplex.numberRows(); ++i) basis.rows.push_back(state(simplex.getRowStatus(i)));
  return basis;
}

void LinearProgram::start_from(const Basis& basis) {
  auto& simplex = model_->simplex;
  model_->load();
  simplex.createStatus();
  const auto status = [](State state) {
    switch (state) {
      case State::basic: return ClpSimplex::basic;
      case State::upper: return ClpSimplex::atUpperBound;
      case State::free: return ClpSimplex::isFree;
      default: return ClpSimplex::atLowerBound;
    }
  };
  for (int i = 0; i < simplex.numberColumns(); ++i) simplex.setColumnStatus(i, status(basis.columns[i]));
  for (int i = 0; i < simplex.numberRows(); ++i) simplex.setRowStatus(i, status(basis.rows[i]));
  model_->started = true;
}

bool LinearProgram::minimize() {
  auto& simplex = model_->simplex;
  model_->load();
  if (model_->started) {
    simplex.primal(1);
  } else {
    simplex.dual();
  }
  if (simplex.status() != 0) simplex.primal();  // a basis that fits no more, or numbers that went astray
  model_->started = true;
  return simplex.status() == 0;
}

double LinearProgram::cost() const { return model_->simplex.objectiveValue(); }
double LinearProgram::value(int column) const { return model_->simplex.primalColumnSolution()[column]; }
double LinearProgram::row_price(int row) const { return model_->simplex.dualRowSolution()[row]; }
double LinearProgram::reduced_cost(int column) const { return model_->simplex.dualColumnSolution()[column]; }

void LinearProgram::close_worse() {
  constexpr double worse = 1e-9;
  auto& simplex = model_->simplex;
  const double *reduced = simplex.dualColumnSolution(), *prices = simplex.dualRowSolution();
  for (int i = 0; i < simplex.numberColumns(); ++i) {
    if (simplex.getColumnStatus(i) == ClpSimplex::basic || std::abs(reduced[i]) <= worse) continue;
    const double at = simplex.primalColumnSolution()[i];
    simplex.setColumnBounds(i, at, at);
  }
  for (int i = 0; i < simplex.numberRows(); ++i) {
    if (simplex.getRowStatus(i) == ClpSimplex::basic || std::abs(prices[i]) <= worse) continue;
    const double lower = simplex.rowLower()[i], upper = simplex.rowUpper()[i];
    const double at = prices[i] > 0 ? lower : upper;
    if (std::abs(at) < COIN_DBL_MAX) simplex.setRowBounds(i, at, at);
  }
}

}  // namespace trireme::fleet
