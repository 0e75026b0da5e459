#include "trireme/fleet/lp/center.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/normal.h"

namespace trireme::fleet {

namespace {

// minimise cᵀx − κ L   subject to   A x + B L + s = b,   x, s ≥ 0,   with duals z of x and y of the rows.
class InteriorPoint {
 public:
  InteriorPoint(const ShareProblem& problem, bool proportional);
  ShareSolution solve();

 private:
  ShareSolution follow();
  void add_columns();
  void start();
  void residuals();
  void directions(double target, bool corrected);
  double longest(const std::vector<double>& at, const std::vector<double>& by) const;
  double complementarity(double primal, double dual) const;
  double goal(size_t row, double target) const { return fixed_[row] ? weight_s_[row] : target * weight_s_[row]; }
  void move(double primal, double dual);
  bool converged() const { return mu_ < 1.5 * last_mu_ && primal_error_ < tolerance_ && dual_error_ < 1e-6; }
  bool centered() const;
  ShareSolution result() const;

  const ShareProblem& problem_;
  const bool proportional_;
  bool raises_ = false;
  ShareMatrix matrix_;
  NormalMatrix normal_;
  std::vector<size_t> place_;  // of each column in alone (then paired)
  std::vector<double> row_scale_;
  double gain_scale_ = 1;
  std::vector<double> b_, border_, c_, weight_x_, weight_s_;
  std::vector<uint8_t> fixed_;  // rows whose s y is their weight, not μ times it
  std::vector<double> x_, z_, s_, y_, dx_, dz_, ds_, dy_;
  double level_ = 0, dlevel_ = 0, kappa_ = 0, mu_ = 1, last_mu_ = 0, tolerance_ = 0, weights_ = 0;
  std::vector<double> primal_, dual_, right_, border_solved_, column_weight_, row_weight_;
  double level_residual_ = 0, primal_error_ = 0, dual_error_ = 0;
};

InteriorPoint::InteriorPoint(const ShareProblem& problem, bool proportional)
    : problem_(problem),
      proportional_(proportional),
      matrix_{problem.jobs, problem.types, !problem.pairs.empty(), {}},
      normal_(matrix_) {
  const size_t jobs = problem.jobs, types = problem.types;
  row_scale_.assign(jobs, 1);
  double largest_gain = 0;
  for (size_t m = 0; m < jobs; ++m) {
    const double largest = *std::max_element(&problem.value[m * types], &problem.value[m * types] + types);
    if (largest > 0) row_scale_[m] = 1 / largest;
    if (problem.raises_level && !proportional) largest_gain = std::max(largest_gain, problem.gain[m] * row_scale_[m]);
  }
  raises_ = largest_gain > 0;
  if (raises_) gain_scale_ = 1 / largest_gain;
  kappa_ = raises_ ? 1 : 0;
  const size_t rows = matrix_.rows();
  for (auto* each : {&b_, &border_}) each->assign(rows, 0);
  weight_s_.assign(rows, 1);
  fixed_.assign(rows, 0);
  for (size_t m = 0; m < jobs; ++m) {
    const double copies = problem.copies(m);
    weight_s_[2 * m] = weight_s_[2 * m + 1] = copies;
    b_[2 * m + 1] = copies;
    fixed_[2 * m] = proportional;
    if (proportional) continue;
    b_[2 * m] = -problem.base[m] * row_scale_[m] * copies;
    if (raises_) border_[2 * m] = problem.gain[m] * row_scale_[m] * gain_scale_ * copies;
  }
  // A type without devices has no columns; its row must still have an inside.
  for (size_t j = 0; j < types; ++j) b_[2 * jobs + j] = problem.capacity[j] > 0 ? problem.capacity[j] : 1;
  add_columns();
}

void InteriorPoint::add_columns() {
  const size_t jobs = problem_.jobs, types = problem_.types;
  const bool costly = !raises_ && !proportional_ && !problem_.costs.empty();
  double largest = 0;
  const auto add = [&](ShareColumn column, size_t place, double copies, double cost) {
    if (problem_.capacity[column.type] <= 0) return;
    matrix_.columns.push_back(column);
    place_.push_back(place);
    weight_x_.push_back(copies);
    c_.push_back(cost);
    largest = std::max(largest, std::abs(cost));
  };
  for (size_t m = 0; m < jobs; ++m) {
    for (size_t j = 0; j < types; ++j) {
      const size_t place = m * types + j;
      add({static_cast<int>(m), -1, static_cast<int>(j), problem_.value[place] * row_scale_[m], 0, 1, 0,
           problem_.scale[m]},
          place, problem_.copies(m), costly ? problem_.costs[0].alone[place] : 0);
    }
  }
  for (size_t p = 0; p < problem_.pairs.size(); ++p) {
    const auto [first, second] = problem_.pairs[p];
    for (size_t j = 0; j < types; ++j) {
      const size_t place = p * types + j;
      ShareColumn column = {first,
                            second,
                            static_cast<int>(j),
                            problem_.value_first[place] * row_scale_[first],
                            problem_.value_second[place] * row_scale_[second],
                            1,
                            1,
                            problem_.scale[first]};
      if (first == second) column.second = -1, column.value_first += column.value_second, column.time_first = 2;
      add(column, jobs * types + place, problem_.pair_copies(p), costly ? problem_.costs[0].paired[place] : 0);
    }
  }
  if (largest > 0) {
    for (auto& cost : c_) cost /= largest;
  }
}

void InteriorPoint::start() {
  const size_t rows = matrix_.rows();
  x_.resize(matrix_.columns.size());
  // Everybody a little of everything, well inside the devices' rows.
  std::vector<double> crowd(problem_.types, 0), members(problem_.jobs, 0);
  for (size_t k = 0; k < x_.size(); ++k) {
    const auto& column = matrix_.columns[k];
    crowd[column.type] += weight_x_[k] * column.devices;
    members[column.first] += weight_x_[k] * column.time_first / problem_.copies(column.first);
    if (column.second >= 0) members[column.second] += weight_x_[k] / problem_.copies(column.second);
  }
  for (size_t k = 0; k < x_.size(); ++k) {
    const auto& column = matrix_.columns[k];
    double most = members[column.first];
    if (column.second >= 0) most = std::max(most, members[column.second]);
    x_[k] = 0.5 * weight_x_[k] * std::min(1 / most, problem_.capacity[column.type] / crowd[column.type]);
  }
  s_.assign(rows, 0);
  matrix_.add_product(x_, s_);
  level_ = 0;
  y_.resize(rows);
  z_.resize(x_.size());
  weights_ = 0;
  for (size_t i = 0; i < rows; ++i) {
    s_[i] = std::max(b_[i] - s_[i], 0.1 * weight_s_[i]);
    y_[i] = weight_s_[i] / s_[i];
    if (!fixed_[i]) weights_ += weight_s_[i];
  }
  for (size_t k = 0; k < x_.size(); ++k) z_[k] = weight_x_[k] / x_[k], weights_ += weight_x_[k];
  dx_ = dz_ = std::vector<double>(x_.size(), 0);
  ds_ = dy_ = std::vector<double>(rows, 0);
  mu_ = 1;
  // The level is then right to about 1e-4: further down rounding moves the centre more than it gains.
  last_mu_ = proportional_ ? 1e-6 : std::clamp(3e-5 / weights_, 1e-7, 1e-5);
}

void InteriorPoint::residuals() {
  primal_ = b_;
  for (size_t i = 0; i < b_.size(); ++i) primal_[i] -= s_[i] + border_[i] * level_;
  std::vector<double> product(b_.size(), 0);
  matrix_.add_product(x_, product);
  primal_error_ = dual_error_ = 0;
  for (size_t i = 0; i < b_.size(); ++i) {
    primal_[i] -= product[i];
    primal_error_ = std::max(primal_error_, std::abs(primal_[i]) / (1 + std::abs(b_[i])));
  }
  dual_.resize(x_.size());
  for (size_t k = 0; k < x_.size(); ++k) {
    dual_[k] = z_[k] - c_[k] - matrix_.column_product(k, y_);
    dual_error_ = std::max(dual_error_, std::abs(dual_[k]));
  }
  level_residual_ = kappa_;
  for (size_t i = 0; i < b_.size(); ++i) level_residual_ -= border_[i] * y_[i];
  if (raises_) dual_error_ = std::max(dual_error_, std::abs(level_residual_));
  mu_ = complementarity(0, 0);
}

double InteriorPoint::complementarity(double primal, double dual) const {
  double sum = 0;
  for (size_t k = 0; k < x_.size(); ++k) sum += (x_[k] + primal * dx_[k]) * (z_[k] + dual * dz_[k]);
  for (size_t i = 0; i < s_.size(); ++i) {
    if (!fixed_[i]) sum += (s_[i] + primal * ds_[i]) * (y_[i] + dual * dy_[i]);
  }
  return sum / weights_;
}

// A Newton step towards x z = target; corrected by the products of the step before it.
void InteriorPoint::directions(double target, bool corrected) {
  const size_t columns = x_.size(), rows = s_.size();
  std::vector<double> towards_x(columns), towards_s(rows), inner(columns);
  for (size_t k = 0; k < columns; ++k) {
    towards_x[k] = target * weight_x_[k] - x_[k] * z_[k] - (corrected ? dx_[k] * dz_[k] : 0);
    inner[k] = (towards_x[k] + x_[k] * dual_[k]) / z_[k];
  }
  right_.assign(rows, 0);
  matrix_.add_product(inner, right_);
  for (size_t i = 0; i < rows; ++i) {
    towards_s[i] = goal(i, target) - s_[i] * y_[i] - (corrected ? ds_[i] * dy_[i] : 0);
    right_[i] += towards_s[i] / y_[i] - primal_[i];
  }
  if (!corrected) {  // the corrector has the predictor's matrix
    column_weight_.resize(columns);
    row_weight_.resize(rows);
    for (size_t k = 0; k < columns; ++k) column_weight_[k] = x_[k] / z_[k];
    for (size_t i = 0; i < rows; ++i) row_weight_[i] = s_[i] / y_[i];
    normal_.factor(column_weight_, row_weight_);
    border_solved_ = border_;
    if (raises_) normal_.solve(border_solved_);
  }
  dlevel_ = 0;
  std::fill(dy_.begin(), dy_.end(), 0);
  // What rounding leaves in the rows is solved for again.
  for (int turn = 0; turn < 3; ++turn) {
    normal_.solve(right_);
    double more_level = 0;
    if (raises_) {
      double top = level_residual_, bottom = 0;
      for (size_t i = 0; i < rows; ++i) {
        top -= border_[i] * (right_[i] + dy_[i]);
        bottom += border_[i] * border_solved_[i];
      }
      more_level = top / bottom;
    }
    dlevel_ += more_level;
    for (size_t i = 0; i < rows; ++i) dy_[i] += right_[i] + border_solved_[i] * more_level;
    for (size_t i = 0; i < rows; ++i) ds_[i] = (towards_s[i] - s_[i] * dy_[i]) / y_[i];
    for (size_t k = 0; k < columns; ++k) {
      dz_[k] = matrix_.column_product(k, dy_) - dual_[k];
      dx_[k] = (towards_x[k] - x_[k] * dz_[k]) / z_[k];
    }
    double largest = 0;
    for (size_t i = 0; i < rows; ++i) right_[i] = ds_[i] + border_[i] * dlevel_ - primal_[i];
    matrix_.add_product(dx_, right_);
    for (size_t i = 0; i < rows; ++i) largest = std::max(largest, std::abs(right_[i]));
    if (largest < 1e-11) break;
  }
}

double InteriorPoint::longest(const std::vector<double>& at, const std::vector<double>& by) const {
  double longest = 1e30;
  for (size_t i = 0; i < at.size(); ++i) {
    if (by[i] < 0) longest = std::min(longest, -at[i] / by[i]);
  }
  return longest;
}

void InteriorPoint::move(double primal, double dual) {
  for (size_t k = 0; k < x_.size(); ++k) x_[k] += primal * dx_[k], z_[k] += dual * dz_[k];
  for (size_t i = 0; i < s_.size(); ++i) s_[i] += primal * ds_[i], y_[i] += dual * dy_[i];
  level_ += primal * dlevel_;
}

bool InteriorPoint::centered() const {
  double worst = 0;
  for (size_t k = 0; k < x_.size(); ++k) worst = std::max(worst, std::abs(x_[k] * z_[k] / (mu_ * weight_x_[k]) - 1));
  for (size_t i = 0; i < s_.size(); ++i) worst = std::max(worst, std::abs(s_[i] * y_[i] / goal(i, mu_) - 1));
  return worst < 1e-3;
}

ShareSolution InteriorPoint::solve() {
  // Where the optima have hardly any inside, rounding wins before μ is that small: then a larger one must do.
  for (double larger : {1.0, 10.0, 100.0, 1000.0}) {
    start();
    last_mu_ *= larger;
    tolerance_ = 1e-6 * larger;
    auto solution = follow();
    if (solution.feasible) return solution;
  }
  return {};
}

ShareSolution InteriorPoint::follow() {
  bool inside = false;
  for (int turn = 0; turn < 80; ++turn) {
    residuals();
    if (!std::isfinite(mu_)) break;
    inside |= converged();
    if (converged() && centered()) return result();
    if (!inside && proportional_) {  // s y = 1 is no line: a plain step
      directions(std::max(0.2 * mu_, last_mu_), false);
    } else if (!inside) {
      directions(0, false);
      const double primal = std::min({1.0, longest(x_, dx_), longest(s_, ds_)});
      const double dual = std::min({1.0, longest(z_, dz_), longest(y_, dy_)});
      const double ratio = complementarity(primal, dual) / mu_;
      directions(std::max(std::min(ratio * ratio * ratio, 1.0) * mu_, last_mu_), true);
    } else {
      directions(last_mu_, false);
    }
    const double keep = inside ? 0.9 : 0.99;
    double primal = std::min({1.0, keep * longest(x_, dx_), keep * longest(s_, ds_)});
    double dual = std::min({1.0, keep * longest(z_, dz_), keep * longest(y_, dy_)});
    if (proportional_) primal = dual = std::min(primal, dual);  // s y = 1 ties them together
    move(primal, dual);
  }
  return {};
}

ShareSolution InteriorPoint::result() const {
  ShareSolution solution;
  solution.feasible = true;
  solution.level = level_ * gain_scale_;
  const size_t singles = problem_.jobs * problem_.types;
  solution.alone.assign(singles, 0);
  solution.paired.assign(problem_.pairs.size() * problem_.types, 0);
  for (size_t k = 0; k < x_.size(); ++k) {
    (place_[k] < singles ? solution.alone[place_[k]] : solution.paired[place_[k] - singles]) = x_[k];
  }
  solution.pressure.assign(problem_.jobs, 0);
  for (size_t m = 0; m < problem_.jobs; ++m) {
    if (raises_ && y_[2 * m] > s_[2 * m]) solution.pressure[m] = y_[2 * m];
  }
  return solution;
}

}  // namespace

ShareSolution center_of_optima(const ShareProblem& problem) { return InteriorPoint(problem, false).solve(); }

ShareSolution proportional_fairness(const ShareProblem& problem) { return InteriorPoint(problem, true).solve(); }

}  // namespace trireme::fleet
