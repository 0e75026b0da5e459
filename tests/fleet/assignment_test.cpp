#include "trireme/fleet/policies/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/random.h"

namespace trireme::fleet {
namespace {

double best_by_trying(const std::vector<double>& cost, size_t rows, size_t columns) {
  std::vector<size_t> order(columns);
  std::iota(order.begin(), order.end(), size_t{0});
  double best = 1e300;
  do {
    double sum = 0;
    for (size_t row = 0; row < rows; ++row) sum += cost[row * columns + order[row]];
    best = std::min(best, sum);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(Assignment, IsAsCheapAsTheBestOfAll) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Key key{seed};
    const size_t rows = 1 + bits64(key, 0) % 5, columns = rows + bits64(key, 1) % 3;
    std::vector<double> cost(rows * columns);
    for (size_t i = 0; i < cost.size(); ++i) {
      cost[i] =
          seed % 2 ? static_cast<double>(bits64(key.with(7), i) % 4) : uniform(key.with(7), i);  // many ties, or none
    }
    const auto columns_of = assign(cost, rows, columns);
    double sum = 0;
    for (size_t row = 0; row < rows; ++row) sum += cost[row * columns + columns_of[row]];
    EXPECT_NEAR(sum, best_by_trying(cost, rows, columns), 1e-12) << seed;
    auto sorted = columns_of;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end()) << seed;
  }
}

}  // namespace
}  // namespace trireme::fleet
