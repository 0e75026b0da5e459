// What the policies that solve linear programs answer where the answer is known by hand. What only Clp can solve is in
// clp_test.cpp.
#include <gtest/gtest.h>

#include "tests/fleet/known_cluster.h"

namespace trireme::fleet {
namespace {

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

}  // namespace
}  // namespace trireme::fleet
