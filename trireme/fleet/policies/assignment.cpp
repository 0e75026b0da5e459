#include "trireme/fleet/policies/assignment.h"

#include <limits>
#include <utility>

namespace trireme::fleet {

namespace {

constexpr size_t nobody = std::numeric_limits<size_t>::max();
constexpr double infinity = std::numeric_limits<double>::infinity();

class Assignment {
 public:
  Assignment(const std::vector<double>& cost, size_t rows, size_t columns)
      : cost_(cost),
        columns_(columns),
        row_price_(rows, 0),
        column_price_(columns, 0),
        distance_(columns),
        previous_(columns, nobody),
        row_of_(columns, nobody),
        column_of_(rows, nobody) {}

  void add(size_t row) {
    double shortest = 0;
    const size_t end = find_path(row, shortest);
    row_price_[row] += shortest;
    for (size_t reached : reached_rows_) {
      if (reached != row) row_price_[reached] += shortest - distance_[column_of_[reached]];
    }
    for (size_t column : reached_columns_) column_price_[column] -= shortest - distance_[column];
    for (size_t column = end;;) {  // turn the path over
      const size_t owner = previous_[column];
      row_of_[column] = owner;
      std::swap(column_of_[owner], column);
      if (owner == row) return;
    }
  }

  const std::vector<size_t>& columns() const { return column_of_; }

 private:
  // Dijkstra over reduced costs from the row to the nearest free column.
  size_t find_path(size_t row, double& shortest) {
    reached_rows_.clear();
    reached_columns_.clear();
    distance_.assign(columns_, infinity);
    open_.resize(columns_);
    for (size_t i = 0; i < columns_; ++i) open_[i] = columns_ - i - 1;
    while (true) {
      reached_rows_.push_back(row);
      double lowest = infinity;
      size_t best = 0;
      for (size_t i = 0; i < open_.size(); ++i) {
        const size_t column = open_[i];
        const double reduced = shortest + cost_[row * columns_ + column] - row_price_[row] - column_price_[column];
        if (reduced < distance_[column]) {
          previous_[column] = row;
          distance_[column] = reduced;
        }
        const bool nearer = distance_[column] < lowest;
        if (nearer || (distance_[column] == lowest && row_of_[column] == nobody)) {
          lowest = distance_[column];
          best = i;
        }
      }
      shortest = lowest;
      const size_t column = open_[best];
      reached_columns_.push_back(column);
      if (row_of_[column] == nobody) return column;
      row = row_of_[column];
      open_[best] = open_.back();
      open_.pop_back();
    }
  }

  const std::vector<double>& cost_;
  size_t columns_;
  std::vector<double> row_price_, column_price_, distance_;
  std::vector<size_t> previous_, row_of_, column_of_, open_, reached_rows_, reached_columns_;
};

}  // namespace

std::vector<size_t> assign(const std::vector<double>& cost, size_t rows, size_t columns) {
  Assignment assignment(cost, rows, columns);
  for (size_t row = 0; row < rows; ++row) assignment.add(row);
  return assignment.columns();
}

}  // namespace trireme::fleet
