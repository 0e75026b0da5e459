// The solver Clp, and the policies that need it because jobs may share devices, where the answer is known by hand.
#include <gtest/gtest.h>

#include "tests/fleet/known_cluster.h"
#include "trireme/base/error.h"
#include "trireme/fleet/lp/linear_program.h"

namespace trireme::fleet {
namespace {

TEST(MaxMinPolicy, PairsJobsOfEachScaleThatIsThere) {
  auto view = cluster({4}, {{10}, {10}, {8}, {8}});
  view.jobs[2].scale = view.jobs[3].scale = 4;
  view.pairs = {{0, 1}, {2, 3}};
  view.throughput_first = {9, 7};
  view.throughput_second = {9, 7};
  const auto alone = speeds_by("max-min", [&] {
    auto plain = view;
    plain.pairs.clear();
    plain.throughput_first.clear();
    plain.throughput_second.clear();
    return plain;
  }());
  const auto allocation = make_policy("max-min-packed", 0)->allocate(view);
  EXPECT_LE(violation(view, allocation), 1e-9);
  const auto speeds = speeds_under(view, allocation);
  for (size_t m = 2; m < 4; ++m) EXPECT_GT(speeds[m], 1.3 * alone[m]);
}

TEST(LpPolicies, RefuseAPairOfUnequalJobs) {
  auto view = cluster({4}, {{10}, {10}});
  view.jobs[1].scale = 2;
  view.pairs = {{0, 1}};
  view.throughput_first = view.throughput_second = {5};
  EXPECT_THROW(make_policy("max-min-packed", 0)->allocate(view), Error);
}

TEST(LinearProgram, MinimizesAndGoesOnFromItsBasis) {
  // min −x − 2y, x + y ≤ 4, y ≤ 3
  LinearProgram program;
  const int row = program.add_row(-LinearProgram::infinity, 4);
  const LinearProgram::Entry entry{row, 1};
  const int x = program.add_column(0, LinearProgram::infinity, -1, {&entry, 1});
  const int y = program.add_column(0, 3, -2, {&entry, 1});
  ASSERT_TRUE(program.minimize());
  EXPECT_NEAR(program.cost(), -7, 1e-9);
  EXPECT_NEAR(program.row_price(row), -1, 1e-9);
  program.set_row(row, -LinearProgram::infinity, 2);
  ASSERT_TRUE(program.minimize());
  EXPECT_NEAR(program.value(x), 0, 1e-9);
  EXPECT_NEAR(program.value(y), 2, 1e-9);
  program.set_row(row, 9, LinearProgram::infinity);
  program.set_cost(x, 1);
  ASSERT_TRUE(program.minimize());
  EXPECT_NEAR(program.value(x), 6, 1e-9);
}

}  // namespace
}  // namespace trireme::fleet
