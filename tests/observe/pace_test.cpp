// When a step is late, by what steps have taken.
#include "trireme/observe/pace.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

Pace after(const std::vector<double>& steps) {
  Pace pace;
  for (const double one : steps) pace.add(one);
  return pace;
}

TEST(Pace, KnowsNothingBeforeTheFirstStep) { EXPECT_EQ(Pace().deadline_s(), 0); }

TEST(Pace, StepsThatAreAlikeMayTakeTwiceAsLong) {
  EXPECT_DOUBLE_EQ(after({30}).deadline_s(), 60);
  EXPECT_DOUBLE_EQ(after({30, 30, 30, 30}).deadline_s(), 60);
}

TEST(Pace, StepsThatScatterGetMoreTime) { EXPECT_DOUBLE_EQ(after({20, 25, 30, 35, 40}).deadline_s(), 30 + 10 * 5); }

TEST(Pace, OneLongStepMovesNothing) {
  std::vector<double> steps(20, 30.0);
  steps[7] = 3000;
  EXPECT_DOUBLE_EQ(after(steps).deadline_s(), 60);
}

TEST(Pace, FollowsTheLastSteps) {
  std::vector<double> steps(Pace::kept, 1.0);
  steps.insert(steps.end(), Pace::kept, 100.0);
  EXPECT_DOUBLE_EQ(after(steps).deadline_s(), 200);
  steps.insert(steps.end(), Pace::kept, 2.0);
  EXPECT_DOUBLE_EQ(after(steps).deadline_s(), 4);
}

}  // namespace
}  // namespace trireme
