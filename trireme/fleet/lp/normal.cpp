#include "trireme/fleet/lp/normal.h"

#include <algorithm>
#include <cmath>

namespace trireme::fleet {

namespace {

// The lower triangle of a symmetric n × n matrix becomes its Cholesky factor. Pivots that rounding has eaten become
// huge, which leaves their unknowns at 0.
void cholesky(double* a, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    double* row = a + i * n;
    const double before = row[i];
    for (size_t j = 0; j <= i; ++j) {
      const double* other = a + j * n;
      double sum = row[j];
      for (size_t k = 0; k < j; ++k) sum -= row[k] * other[k];
      if (j < i) {
        row[j] = sum / other[j];
      } else {
        row[i] = sum > 1e-30 * std::abs(before) && sum > 0 ? std::sqrt(sum) : 1e64;
      }
    }
  }
}

void cholesky_solve(const double* a, size_t n, double* right) {
  for (size_t i = 0; i < n; ++i) {
    double sum = right[i];
    for (size_t k = 0; k < i; ++k) sum -= a[i * n + k] * right[k];
    right[i] = sum / a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    right[i] /= a[i * n + i];
    const double value = right[i];
    for (size_t k = 0; k < i; ++k) right[k] -= a[i * n + k] * value;
  }
}

}  // namespace

void ShareMatrix::add_product(const std::vector<double>& x, std::vector<double>& result) const {
  for (size_t k = 0; k < columns.size(); ++k) {
    const auto& column = columns[k];
    result[2 * column.first] -= column.value_first * x[k];
    result[2 * column.first + 1] += column.time_first * x[k];
    if (column.second >= 0) {
      result[2 * column.second] -= column.value_second * x[k];
      result[2 * column.second + 1] += column.time_second * x[k];
    }
    result[2 * jobs + column.type] += column.devices * x[k];
  }
}

double ShareMatrix::column_product(size_t k, const std::vector<double>& y) const {
  const auto& column = columns[k];
  double sum = column.time_first * y[2 * column.first + 1] - column.value_first * y[2 * column.first] +
               column.devices * y[2 * jobs + column.type];
  if (column.second >= 0)
    sum += column.time_second * y[2 * column.second + 1] - column.value_second * y[2 * column.second];
  return sum;
}

NormalMatrix::NormalMatrix(const ShareMatrix& matrix)
    : matrix_(matrix),
      inner_(2 * matrix.jobs),
      blocks_(matrix.paired ? 0 : 3 * matrix.jobs),
      determinants_(matrix.paired ? 0 : matrix.jobs),
      dense_(matrix.paired ? inner_ * inner_ : 0),
      across_(matrix.types * inner_),
      across_solved_(matrix.types * inner_),
      devices_(matrix.types * matrix.types) {}

void NormalMatrix::gather(const std::vector<double>& column_weight, const std::vector<double>& row_weight) {
  for (auto* each : {&blocks_, &determinants_, &dense_, &across_, &devices_}) std::fill(each->begin(), each->end(), 0);
  for (size_t k = 0; k < matrix_.columns.size(); ++k) {
    const auto& column = matrix_.columns[k];
    const double weight = column_weight[k];
    const int rows[4] = {2 * column.first, 2 * column.first + 1, 2 * column.second, 2 * column.second + 1};
    const double factors[4] = {-column.value_first, column.time_first, -column.value_second, column.time_second};
    const int count = column.second >= 0 ? 4 : 2;
    double* across = &across_[column.type * inner_];
    for (int a = 0; a < count; ++a) across[rows[a]] += weight * factors[a] * column.devices;
    devices_[column.type * matrix_.types + column.type] += weight * column.devices * column.devices;
    if (!matrix_.paired) {
      double* block = &blocks_[3 * column.first];
      // The determinant as a sum of squares (after Cauchy and Binet): as a difference it would lose everything where
      // one column outweighs all others.
      double* determinant = &determinants_[column.first];
      for (size_t before = k; before-- > 0 && matrix_.columns[before].first == column.first;) {
        const double cross = column.time_first * matrix_.columns[before].value_first -
                             column.value_first * matrix_.columns[before].time_first;
        *determinant += weight * column_weight[before] * cross * cross;
      }
      block[0] += weight * factors[0] * factors[0];
      block[1] += weight * factors[0] * factors[1];
      block[2] += weight * factors[1] * factors[1];
      continue;
    }
    for (int a = 0; a < count; ++a) {
      for (int b = 0; b < count; ++b) {
        if (rows[b] <= rows[a]) dense_[rows[a] * inner_ + rows[b]] += weight * factors[a] * factors[b];
      }
    }
  }
  for (size_t i = 0; i < inner_; ++i) {
    if (matrix_.paired) {
      dense_[i * inner_ + i] += row_weight[i];
    } else {
      double* block = &blocks_[3 * (i / 2)];
      determinants_[i / 2] += row_weight[i] * block[2 - 2 * (i % 2)];
      block[2 * (i % 2)] += row_weight[i];
    }
  }
  for (size_t j = 0; j < matrix_.types; ++j) devices_[j * matrix_.types + j] += row_weight[inner_ + j];
}

void NormalMatrix::solve_inner(double* right) const {
  if (matrix_.paired) return cholesky_solve(dense_.data(), inner_, right);
  for (size_t m = 0; m < matrix_.jobs; ++m) {
    const double* block = &blocks_[3 * m];
    const double first = right[2 * m], second = right[2 * m + 1];
    right[2 * m] = block[0] * first + block[1] * second;
    right[2 * m + 1] = block[1] * first + block[2] * second;
  }
}

void NormalMatrix::factor(const std::vector<double>& column_weight, const std::vector<double>& row_weight) {
  gather(column_weight, row_weight);
  const size_t types = matrix_.types;
  if (matrix_.paired) {
    cholesky(dense_.data(), inner_);
  } else {
    for (size_t m = 0; m < matrix_.jobs; ++m) {
      double* block = &blocks_[3 * m];
      const double scale = 1 / determinants_[m];
      const double first = block[2] * scale, second = block[0] * scale;
      block[0] = first, block[1] *= -scale, block[2] = second;
    }
  }
  across_solved_ = across_;
  for (size_t j = 0; j < types; ++j) solve_inner(&across_solved_[j * inner_]);
  for (size_t j = 0; j < types; ++j) {
    for (size_t k = 0; k <= j; ++k) {
      double sum = 0;
      for (size_t i = 0; i < inner_; ++i) sum += across_[j * inner_ + i] * across_solved_[k * inner_ + i];
      devices_[j * types + k] -= sum;
    }
  }
  cholesky(devices_.data(), types);
}

void NormalMatrix::solve(std::vector<double>& right) const {
  const size_t types = matrix_.types;
  double* outer = right.data() + inner_;
  for (size_t j = 0; j < types; ++j) {
    for (size_t i = 0; i < inner_; ++i) outer[j] -= across_solved_[j * inner_ + i] * right[i];
  }
  cholesky_solve(devices_.data(), types, outer);
  solve_inner(right.data());
  for (size_t j = 0; j < types; ++j) {
    for (size_t i = 0; i < inner_; ++i) right[i] -= across_solved_[j * inner_ + i] * outer[j];
  }
}

}  // namespace trireme::fleet
