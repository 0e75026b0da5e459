// What the policies that solve linear programs answer where the answer is known by hand.
#include <gtest/gtest.h>

#include "tests/fleet/random_cluster.h"
#include "trireme/base/error.h"
#include "trireme/fleet/lp/linear_program.h"

namespace trireme::fleet {
namespace {

// Jobs of one device with these speeds on each type.
ClusterView cluster(const std::vector<int>& devices, const std::vector<std::vector<double>>& speeds) {
  ClusterView view;
  for (int count : devices) view.types.push_back({"type" + std::to_string(view.types.size()), count, 1});
  for (const auto& row : speeds) {
    PolicyJob job;
    job.id = static_cast<int64_t>(view.jobs.size());
    job.steps_left = 1000;
    view.jobs.push_back(job);
    view.throughput.insert(view.throughput.end(), row.begin(), row.end());
  }
  return view;
}

std::vector<double> speeds_by(const std::string& policy, const ClusterView& view) {
  return speeds_under(view, make_policy(policy, 0)->allocate(view));
}

TEST(MaxMinPolicy, GivesEachJobTheTypeThatSuitsIt) {
  const auto view = cluster({1, 1}, {{10, 1}, {1, 10}});
  const auto allocation = make_policy("max-min", 0)->allocate(view);
  EXPECT_NEAR(allocation.alone[0], 1, 1e-9);
  EXPECT_NEAR(allocation.alone[3], 1, 1e-9);
}

TEST(MaxMinPolicy, HalvesWhatTwoWantAndWeighsIt) {
  auto view = cluster({1}, {{10}, {10}});
  EXPECT_NEAR(speeds_by("max-min", view)[0], 5, 1e-9);
  view.jobs[0].weight = 3;
  EXPECT_NEAR(speeds_by("max-min", view)[0], 7.5, 1e-9);
}

TEST(MaxMinPolicy, KeepsJobsWhereTheyAreWhenNothingElseDecides) {
  auto view = cluster({1, 1}, {{4, 4}, {4, 4}});
  for (const bool crossed : {false, true}) {
    view.held = crossed ? std::vector<double>{0, 1, 1, 0} : std::vector<double>{1, 0, 0, 1};
    const auto allocation = make_policy("max-min", 0)->allocate(view);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(allocation.alone[i], view.held[i], 1e-9);
  }
}

TEST(MaxMinPolicy, AgnosticLetsEveryJobVisitEveryType) {
  const auto view = cluster({1, 1}, {{10, 1}, {10, 1}});
  const auto allocation = make_policy("max-min-agnostic", 0)->allocate(view);
  for (double share : allocation.alone) EXPECT_NEAR(share, 0.5, 1e-3);
}

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

TEST(MakespanPolicy, EndsAllJobsTogether) {
  auto view = cluster({1}, {{10}, {10}});
  view.jobs[0].steps_left = 3000;
  const auto speeds = speeds_by("makespan", view);
  EXPECT_NEAR(speeds[0], 7.5, 1e-9);
  EXPECT_NEAR(speeds[1], 2.5, 1e-9);
}

TEST(FinishTimeFairnessPolicy, HelpsWhoHasWaited) {
  auto view = cluster({1}, {{10}, {10}});
  auto equal = speeds_by("finish-time-fairness", view);
  EXPECT_NEAR(equal[0], 5, 1e-6);
  view.jobs[0].age_s = 100;
  const auto speeds = speeds_by("finish-time-fairness", view);
  EXPECT_GT(speeds[0], 5.5);
  // (100 + 1000/a) / 200 = (1000/b) / 200 with a + b = 10
  EXPECT_NEAR(100 + 1000 / speeds[0], 1000 / speeds[1], 1e-5);
}

TEST(WaterFillingPolicy, GoesOnWhereMaxMinStops) {
  // The first job can use only the slow type; the others share the fast one however little it gets.
  const auto view = cluster({1, 1}, {{1, 0}, {0, 9}, {0, 9}});
  const auto speeds = speeds_by("water-filling", view);
  EXPECT_NEAR(speeds[0], 1, 1e-6);
  EXPECT_NEAR(speeds[1], 4.5, 1e-6);
  EXPECT_NEAR(speeds[2], 4.5, 1e-6);
}

TEST(WaterFillingPolicy, SplitsByOwnersFirst) {
  auto view = cluster({1}, {{12}, {12}, {12}});
  view.jobs[1].entity = view.jobs[2].entity = 1;
  view.entities = {{1, false}, {1, false}};
  auto speeds = speeds_by("water-filling", view);
  EXPECT_NEAR(speeds[0], 6, 1e-6);
  EXPECT_NEAR(speeds[1], 3, 1e-6);
  view.entities = {{1, false}, {2, true}};  // in order: all of it to the older one
  speeds = speeds_by("water-filling", view);
  EXPECT_NEAR(speeds[0], 4, 1e-6);
  EXPECT_NEAR(speeds[1], 8, 1e-6);
  EXPECT_NEAR(speeds[2], 0, 1e-6);
}

TEST(ThroughputPolicy, TakesTheMostStepsOrTheMostForTheMoney) {
  auto view = cluster({1, 1}, {{10, 6}});
  view.types[0].cost_per_hour = 10;
  EXPECT_NEAR(speeds_by("max-throughput", view)[0], 10, 1e-9);
  EXPECT_NEAR(speeds_by("min-cost", view)[0], 6, 1e-9);
  view.jobs[0].deadline_s = 125;  // 8 steps a second
  EXPECT_NEAR(speeds_by("min-cost-deadlines", view)[0], 8, 1e-6);
}

TEST(ThroughputPolicy, SlowsAllDownTogetherWhereNotAllDeadlinesCanBeKept) {
  auto view = cluster({1}, {{10}, {10}});
  for (auto& job : view.jobs) job.deadline_s = 125;
  auto speeds = speeds_by("min-cost-deadlines", view);
  EXPECT_NEAR(speeds[0], 5, 1e-6);
  EXPECT_NEAR(speeds[1], 5, 1e-6);
  view.jobs[0].deadline_s = -1;  // lost: it runs as fast as it can, in proportion
  speeds = speeds_by("min-cost-deadlines", view);
  EXPECT_NEAR(speeds[0] / speeds[1], 10.0 / 8, 1e-6);
}

TEST(StrategyProofPolicy, ChargesWhatAJobCostsOthers) {
  const auto view = cluster({1}, {{10}, {10}});
  const auto speeds = speeds_by("strategy-proof", view);
  EXPECT_NEAR(speeds[0], 2.5, 1e-2);  // half of the device, and of that the half that the other loses by it
}

TEST(LpPolicies, ShareNothingWhereNothingIs) {
  for (const auto& info : policies()) {
    auto view = cluster({0, 0}, {{1, 2}, {3, 4}});
    for (const bool reference : {false, true}) {
      view.reference = reference;
      const auto allocation = make_policy(info.name, 0)->allocate(view);
      ASSERT_EQ(allocation.alone.size(), 4u) << info.name;
      for (double share : allocation.alone) EXPECT_EQ(share, 0) << info.name;
    }
  }
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
