#include "trireme/fleet/lp/embedding.h"

#include <algorithm>
#include <cmath>

#include "trireme/fleet/lp/normal.h"

namespace trireme::fleet {

namespace {

constexpr double shortest_step = 1e-6, longest_step = 0.999, step_kept = 0.98, least_centering = 1e-4;
constexpr double accuracy = 1e-5;  // further down the points hardly move but for rounding

// minimise cᵀx − κL as  G x + s = h,  s ≥ 0: first −x ≤ 0 for every column, then the rows of ShareMatrix. Vectors over
// columns end with the one of L; those over rows hold the bounds' rows in `bound`.
struct Slacks {
  std::vector<double> bound, row;
};

class Embedding {
 public:
  explicit Embedding(const ShareProblem& problem);
  ShareSolution solve();

 private:
  void add_columns();
  void equilibrate();
  void pool();
  void factor();
  // Gᵀz = right_x, G x − W² z = right_z
  void solve_system(const std::vector<double>& right_x, const Slacks& right_z, std::vector<double>& x, Slacks& z) const;
  void multiply(const std::vector<double>& x, Slacks& result) const;       // G x
  void multiply_back(const Slacks& z, std::vector<double>& result) const;  // Gᵀ z
  void start();
  bool finished();
  void advance();
  double longest(const Slacks& ds, const Slacks& dz, double dtau, double dkappa) const;
  double dot(const Slacks& a, const Slacks& b) const;
  double dot(const std::vector<double>& a, const std::vector<double>& b) const;
  ShareSolution result() const;
  Slacks slacks() const { return {std::vector<double>(columns_, 0), std::vector<double>(rows_, 0)}; }
  // Calls change(i-th element of each) for all rows.
  template <class Change, class... Each>
  void for_rows(Change change, Each&... each) const {
    for (size_t k = 0; k < columns_; ++k) change(each.bound[k]...);
    for (size_t i = 0; i < rows_; ++i) change(each.row[i]...);
  }

  const ShareProblem& problem_;
  bool raises_ = false;
  size_t columns_ = 0, rows_ = 0;
  ShareMatrix matrix_;  // as one job of each class sees it
  ShareMatrix pooled_;  // the same for √n times the unknowns
  NormalMatrix normal_;
  std::vector<size_t> place_;   // of each column in alone (then paired)
  std::vector<double> bound_;   // the entries of −x ≤ 0
  std::vector<double> border_;  // the column of L
  std::vector<double> cost_;    // with that of L
  std::vector<double> column_count_, row_count_, column_root_, row_root_;
  Slacks right_, scale_x_;  // h; the scaling of rows
  std::vector<double> column_scale_;
  std::vector<double> x_;
  Slacks s_, z_, weight_;  // weight: W²
  std::vector<double> column_weight_, row_weight_, border_solved_;
  double tau_ = 1, kappa_ = 1, mu_ = 0, total_count_ = 0, border_square_ = 0;
  std::vector<double> residual_x_;
  Slacks residual_z_;
  double residual_tau_ = 0;
};

Embedding::Embedding(const ShareProblem& problem)
    : problem_(problem),
      rows_(2 * problem.jobs + problem.types),
      matrix_{problem.jobs, problem.types, !problem.pairs.empty(), {}},
      pooled_(matrix_),
      normal_(pooled_) {
  right_.row.assign(rows_, 0);
  row_count_.assign(rows_, 1);
  border_.assign(rows_, 0);
  for (size_t m = 0; m < problem.jobs; ++m) {
    row_count_[2 * m] = row_count_[2 * m + 1] = problem.copies(m);
    right_.row[2 * m] = -problem.base[m];
    right_.row[2 * m + 1] = 1;
    if (problem.raises_level) border_[2 * m] = problem.gain[m];
    raises_ |= border_[2 * m] > 0;
  }
  for (size_t j = 0; j < problem.types; ++j)
    right_.row[2 * problem.jobs + j] = problem.capacity[j] > 0 ? problem.capacity[j] : 1;
  add_columns();
  equilibrate();
  pool();
}

void Embedding::add_columns() {
  const size_t jobs = problem_.jobs, types = problem_.types;
  const bool costly = !raises_ && !problem_.costs.empty();
  const auto add = [&](ShareColumn column, size_t place, double count, double cost) {
    if (problem_.capacity[column.type] <= 0) return;
    matrix_.columns.push_back(column);
    place_.push_back(place);
    column_count_.push_back(count);
    cost_.push_back(cost);
  };
  for (size_t m = 0; m < jobs; ++m) {
    for (size_t j = 0; j < types; ++j) {
      const size_t place = m * types + j;
      add({static_cast<int>(m), -1, static_cast<int>(j), problem_.value[place], 0, 1, 0, problem_.scale[m]}, place,
          problem_.copies(m), costly ? problem_.costs[0].alone[place] : 0);
    }
  }
  for (size_t p = 0; p < problem_.pairs.size(); ++p) {
    const auto [first, second] = problem_.pairs[p];
    for (size_t j = 0; j < types; ++j) {
      const size_t place = p * types + j;
      add({first, second, static_cast<int>(j), problem_.value_first[place], problem_.value_second[place], 1, 1,
           problem_.scale[first]},
          jobs * types + place, problem_.pair_copies(p), costly ? problem_.costs[0].paired[place] : 0);
    }
  }
  columns_ = matrix_.columns.size();
  bound_.assign(columns_, 1);
  right_.bound.assign(columns_, 0);
  cost_.push_back(raises_ ? -1 : 0);
  column_count_.push_back(1);
}

void Embedding::equilibrate() {
  column_scale_.assign(columns_ + 1, 1);
  scale_x_ = {std::vector<double>(columns_, 1), std::vector<double>(rows_, 1)};
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<double> by_column(columns_ + 1, 0);
    Slacks by_row = slacks();
    const auto see = [&](size_t column, double& row, double entry) {
      by_column[column] = std::max(by_column[column], std::abs(entry));
      row = std::max(row, std::abs(entry));
    };
    for (size_t k = 0; k < columns_; ++k) {
      const auto& column = matrix_.columns[k];
      see(k, by_row.bound[k], bound_[k]);
      see(k, by_row.row[2 * column.first], column.value_first);
      see(k, by_row.row[2 * column.first + 1], column.time_first);
      if (column.second >= 0) {
        see(k, by_row.row[2 * column.second], column.value_second);
        see(k, by_row.row[2 * column.second + 1], column.time_second);
      }
      see(k, by_row.row[2 * problem_.jobs + column.type], column.devices);
    }
    for (size_t i = 0; i < rows_; ++i) see(columns_, by_row.row[i], border_[i]);
    const auto root = [](double& size) { size = std::sqrt(size) < 1e-6 ? 1 : std::sqrt(size); };
    for (auto& size : by_column) root(size);
    for_rows(root, by_row);
    for (size_t k = 0; k < columns_; ++k) {
      auto& column = matrix_.columns[k];
      const double own = by_column[k];
      bound_[k] /= own * by_row.bound[k];
      column.value_first /= own * by_row.row[2 * column.first];
      column.time_first /= own * by_row.row[2 * column.first + 1];
      if (column.second >= 0) {
        column.value_second /= own * by_row.row[2 * column.second];
        column.time_second /= own * by_row.row[2 * column.second + 1];
      }
      column.devices /= own * by_row.row[2 * problem_.jobs + column.type];
    }
    for (size_t i = 0; i < rows_; ++i) border_[i] /= by_column[columns_] * by_row.row[i];
    for (size_t k = 0; k <= columns_; ++k) column_scale_[k] *= by_column[k];
    for_rows([](double& all, double one) { all *= one; }, scale_x_, by_row);
  }
  for (size_t k = 0; k <= columns_; ++k) cost_[k] /= column_scale_[k];
  for_rows([](double& right, double scale) { right /= scale; }, right_, scale_x_);
}

// A class of n jobs moves along (1, …, 1)/√n: in these unknowns the matrix of all jobs is that of the classes.
void Embedding::pool() {
  pooled_ = matrix_;
  for (size_t k = 0; k < columns_; ++k) {
    auto& column = pooled_.columns[k];
    const double count = column_count_[k], first = row_count_[2 * column.first];
    column.devices *= std::sqrt(count);
    if (column.second < 0) continue;
    const double second = row_count_[2 * column.second];
    if (column.first == column.second) {
      const double both = std::sqrt(count / first);  // a job is in 2 n / count of its class's pairs
      column.value_first = both * (column.value_first + column.value_second);
      column.time_first = both * (column.time_first + column.time_second);
      column.second = -1;
      continue;
    }
    const double one = std::sqrt(count / first), two = std::sqrt(count / second);
    column.value_first *= one, column.time_first *= one;
    column.value_second *= two, column.time_second *= two;
  }
  for (double count : column_count_) column_root_.push_back(std::sqrt(count));
  for (double count : row_count_) row_root_.push_back(std::sqrt(count));
  total_count_ = 1;
  for (size_t k = 0; k < columns_; ++k) total_count_ += column_count_[k];
  for (double count : row_count_) total_count_ += count;
}

void Embedding::factor() {
  column_weight_.resize(columns_);
  for (size_t k = 0; k < columns_; ++k) column_weight_[k] = weight_.bound[k] / (bound_[k] * bound_[k]);
  normal_.factor(column_weight_, weight_.row);
  if (!raises_) return;
  border_solved_ = border_;
  for (size_t i = 0; i < rows_; ++i) border_solved_[i] *= row_root_[i];
  normal_.solve(border_solved_);
  border_square_ = 0;
  for (size_t i = 0; i < rows_; ++i) border_square_ += border_[i] * row_root_[i] * border_solved_[i];
}

void Embedding::solve_system(const std::vector<double>& right_x, const Slacks& right_z, std::vector<double>& x,
                             Slacks& z) const {
  std::vector<double> wanted(columns_), rows(rows_), answer(rows_, 0), scaled(columns_);
  for (size_t k = 0; k < columns_; ++k) wanted[k] = right_x[k] - bound_[k] * right_z.bound[k] / weight_.bound[k];
  x.assign(columns_ + 1, 0);
  double level = 0;
  // What rounding leaves in the rows is solved for again.
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t k = 0; k < columns_; ++k) {
      scaled[k] = column_weight_[k] * (wanted[k] * column_root_[k] - pooled_.column_product(k, answer));
    }
    double size = 0, largest = 0;
    for (size_t i = 0; i < rows_; ++i) {
      rows[i] = row_root_[i] * (border_[i] * level - right_z.row[i]) - weight_.row[i] * answer[i];
      largest = std::max(largest, std::abs(row_root_[i] * right_z.row[i]));
    }
    pooled_.add_product(scaled, rows);
    for (double each : rows) size = std::max(size, std::abs(each));
    if (turn > 0 && size <= 1e-13 * std::max(1.0, largest)) break;
    normal_.solve(rows);
    double more = 0;
    if (raises_) {
      more = right_x[columns_];
      for (size_t i = 0; i < rows_; ++i) more -= border_[i] * row_root_[i] * (answer[i] + rows[i]);
      more /= border_square_;
    }
    level += more;
    for (size_t i = 0; i < rows_; ++i) answer[i] += rows[i] + (raises_ ? border_solved_[i] * more : 0);
  }
  z.row.resize(rows_);
  z.bound.resize(columns_);
  for (size_t i = 0; i < rows_; ++i) z.row[i] = answer[i] / row_root_[i];
  for (size_t k = 0; k < columns_; ++k) {
    x[k] = column_weight_[k] * (wanted[k] - pooled_.column_product(k, answer) / column_root_[k]);
    z.bound[k] = (-bound_[k] * x[k] - right_z.bound[k]) / weight_.bound[k];
  }
  x[columns_] = level;
}

void Embedding::multiply(const std::vector<double>& x, Slacks& result) const {
  std::vector<double> scaled(columns_);
  result = slacks();
  for (size_t k = 0; k < columns_; ++k) {
    result.bound[k] = -bound_[k] * x[k];
    scaled[k] = x[k] * column_root_[k];
  }
  pooled_.add_product(scaled, result.row);
  for (size_t i = 0; i < rows_; ++i) result.row[i] = result.row[i] / row_root_[i] + border_[i] * x[columns_];
}

void Embedding::multiply_back(const Slacks& z, std::vector<double>& result) const {
  std::vector<double> scaled(rows_);
  result.assign(columns_ + 1, 0);
  for (size_t i = 0; i < rows_; ++i) {
    scaled[i] = z.row[i] * row_root_[i];
    result[columns_] += border_[i] * z.row[i] * row_count_[i];
  }
  for (size_t k = 0; k < columns_; ++k) {
    result[k] = pooled_.column_product(k, scaled) / column_root_[k] - bound_[k] * z.bound[k];
  }
}

double Embedding::dot(const std::vector<double>& a, const std::vector<double>& b) const {
  double sum = 0;
  for (size_t k = 0; k <= columns_; ++k) sum += column_count_[k] * a[k] * b[k];
  return sum;
}

double Embedding::dot(const Slacks& a, const Slacks& b) const {
  double sum = 0;
  for (size_t k = 0; k < columns_; ++k) sum += column_count_[k] * a.bound[k] * b.bound[k];
  for (size_t i = 0; i < rows_; ++i) sum += row_count_[i] * a.row[i] * b.row[i];
  return sum;
}

// The least-squares point of the rows and the smallest duals, both pushed inside.
void Embedding::start() {
  const auto inside = [&](const Slacks& from) {
    double least = step_kept;
    for_rows([&](double each) { least = each <= 0 ? std::min(least, each) : least; }, from);
    Slacks moved = from;
    for_rows([&](double& each) { each += 1 - least; }, moved);
    return moved;
  };
  weight_ = slacks();
  for_rows([](double& each) { each = 1; }, weight_);
  factor();
  Slacks reached, zero = slacks();
  solve_system(std::vector<double>(columns_ + 1, 0), right_, x_, z_);
  multiply(x_, reached);
  for_rows([](double& each, double right) { each = right - each; }, reached, right_);
  s_ = inside(reached);
  std::vector<double> opposite = cost_, unused;
  for (auto& each : opposite) each = -each;
  solve_system(opposite, zero, unused, reached);
  z_ = inside(reached);
  tau_ = kappa_ = 1;
}

bool Embedding::finished() {
  multiply_back(z_, residual_x_);
  for (size_t k = 0; k <= columns_; ++k) residual_x_[k] = -residual_x_[k] - tau_ * cost_[k];
  multiply(x_, residual_z_);
  for_rows([&](double& each, double s, double right) { each += s - tau_ * right; }, residual_z_, s_, right_);
  const double primal_cost = dot(cost_, x_), dual_cost = dot(right_, z_), gap = dot(s_, z_);
  residual_tau_ = kappa_ + primal_cost + dual_cost;
  mu_ = (gap + kappa_ * tau_) / total_count_;
  const auto norm = [&](const auto& of) { return std::sqrt(dot(of, of)); };
  const double primal = norm(residual_z_) / tau_ / std::max(1.0, norm(right_) + norm(x_) + norm(s_));
  const double dual = norm(residual_x_) / tau_ / std::max(1.0, norm(cost_) + norm(z_));
  if (!(primal < accuracy && dual < accuracy)) return false;
  return gap / (tau_ * tau_) < accuracy || gap < accuracy * std::max(std::abs(primal_cost), std::abs(dual_cost)) * tau_;
}

double Embedding::longest(const Slacks& ds, const Slacks& dz, double dtau, double dkappa) const {
  double fastest = 0;
  for_rows([&](double s, double z, double by_s, double by_z) { fastest = std::max({fastest, -by_s / s, -by_z / z}); },
           s_, z_, ds, dz);
  double step = fastest > 0 ? 1 / fastest : 1e30;
  if (dtau < 0) step = std::min(step, -tau_ / dtau);
  if (dkappa < 0) step = std::min(step, -kappa_ / dkappa);
  return std::clamp(step, shortest_step, longest_step);
}

void Embedding::advance() {
  for_rows([](double& weight, double s, double z) { weight = s / z; }, weight_, s_, z_);
  factor();
  std::vector<double> x1, x2, right_x = residual_x_;
  Slacks z1, z2, right_z = residual_z_, ds = slacks(), dz = slacks(), product = slacks();
  std::vector<double> opposite = cost_;
  for (auto& each : opposite) each = -each;
  solve_system(opposite, right_, x1, z1);
  // As far as it would go without centring,
  for_rows([](double& right, double s) { right = s - right; }, right_z, s_);
  solve_system(right_x, right_z, x2, z2);
  const double below = kappa_ / tau_ - dot(cost_, x1) - dot(right_, z1);
  const double affine_tau = (residual_tau_ - kappa_ + dot(cost_, x2) + dot(right_, z2)) / below;
  const double affine_kappa = -kappa_ - kappa_ / tau_ * affine_tau;
  for_rows([&](double& to, double two, double one) { to = two + affine_tau * one; }, dz, z2, z1);
  for_rows([](double& to, double weight, double z, double s) { to = -weight * z - s; }, ds, weight_, dz, s_);
  const double affine = longest(ds, dz, affine_tau, affine_kappa);
  const double centering = std::clamp(std::pow(1 - affine, 3), least_centering, 1.0), rest = 1 - centering;
  // then with as much as that says.
  for_rows(
      [&](double& to, double s, double z, double by_s, double by_z) { to = s * z + by_s * by_z - centering * mu_; },
      product, s_, z_, ds, dz);
  for_rows([&](double& right, double residual, double amount, double z) { right = amount / z - rest * residual; },
           right_z, residual_z_, product, z_);
  for (auto& each : right_x) each *= rest;
  solve_system(right_x, right_z, x2, z2);
  const double goal = kappa_ * tau_ + affine_kappa * affine_tau - centering * mu_;
  const double dtau = (rest * residual_tau_ - goal / tau_ + dot(cost_, x2) + dot(right_, z2)) / below;
  const double dkappa = -(goal + kappa_ * dtau) / tau_;
  for_rows([&](double& to, double two, double one) { to = two + dtau * one; }, dz, z2, z1);
  for_rows([](double& to, double amount, double z, double weight, double by) { to = -(amount / z + weight * by); }, ds,
           product, z_, weight_, dz);
  const double step = step_kept * longest(ds, dz, dtau, dkappa);
  for (size_t k = 0; k <= columns_; ++k) x_[k] += step * (x2[k] + dtau * x1[k]);
  for_rows([&](double& to, double by) { to += step * by; }, s_, ds);
  for_rows([&](double& to, double by) { to += step * by; }, z_, dz);
  tau_ += step * dtau;
  kappa_ += step * dkappa;
}

ShareSolution Embedding::solve() {
  start();
  ShareSolution best;
  for (int turn = 0; turn < 100; ++turn) {
    const bool done = finished();
    if (!std::isfinite(mu_) || !std::isfinite(tau_)) break;
    if (done) return result();
    // Near the end rounding may win; what is this good is kept.
    const double off = std::sqrt(dot(residual_z_, residual_z_)) / tau_;
    if (off < 1e-6 && mu_ / (tau_ * tau_) < 1e-6) best = result();
    advance();
  }
  return best;
}

ShareSolution Embedding::result() const {
  ShareSolution solution;
  const size_t singles = problem_.jobs * problem_.types;
  solution.feasible = true;
  solution.level = x_[columns_] / tau_ / column_scale_[columns_];
  solution.alone.assign(singles, 0);
  solution.paired.assign(problem_.pairs.size() * problem_.types, 0);
  for (size_t k = 0; k < columns_; ++k) {
    const double all = std::max(0.0, x_[k] / tau_ / column_scale_[k]) * column_count_[k];
    (place_[k] < singles ? solution.alone[place_[k]] : solution.paired[place_[k] - singles]) = all;
  }
  solution.pressure.assign(problem_.jobs, 0);
  for (size_t m = 0; m < problem_.jobs; ++m) {
    if (raises_ && z_.row[2 * m] > s_.row[2 * m]) solution.pressure[m] = z_.row[2 * m];
  }
  return solution;
}

}  // namespace

ShareSolution embedded_optimum(const ShareProblem& problem) { return Embedding(problem).solve(); }

}  // namespace trireme::fleet
