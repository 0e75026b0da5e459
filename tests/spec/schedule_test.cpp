// What each schedule does with which microbatch, and what it chooses among tasks that are ready.
#include "trireme/spec/schedule.h"
#include "trireme/spec/action_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr auto forward = TaskKind::forward, backward = TaskKind::backward;

// "F0 F1 B0 B1"
std::string written(const std::vector<StageAction>& actions) {
  std::string text;
  for (const auto& action : actions) {
    text +=
        (text.empty() ? "" : " ") + std::string(action.kind == forward ? "F" : "B") + std::to_string(action.microbatch);
  }
  return text;
}

TEST(Schedule, ListsOfGpipe) {
  EXPECT_EQ(written(gpipe_actions({0, 3, 1})), "F0 B0");
  EXPECT_EQ(written(gpipe_actions({1, 3, 3})), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(ListSchedule("gpipe", gpipe_actions({2, 3, 5})).in_flight(), 5);
}

TEST(Schedule, ListsOfOneForwardOneBackward) {
  EXPECT_EQ(written(one_forward_one_backward_actions({0, 3, 4})), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(written(one_forward_one_backward_actions({1, 3, 4})), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(written(one_forward_one_backward_actions({2, 3, 4})), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(written(one_forward_one_backward_actions({0, 3, 1})), "F0 B0");  // fewer microbatches than stages
  EXPECT_EQ(written(one_forward_one_backward_actions({0, 4, 2})), "F0 F1 B0 B1");
  EXPECT_EQ(written(one_forward_one_backward_actions({0, 1, 3})), "F0 B0 F1 B1 F2 B2");
}

TEST(Schedule, OneForwardOneBackwardHoldsAsManyAsStagesFollow) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int stage = 0; stage < stages; ++stage) {
      for (int microbatches = 1; microbatches <= 8; ++microbatches) {
        const ListSchedule schedule("1f1b", one_forward_one_backward_actions({stage, stages, microbatches}));
        EXPECT_EQ(schedule.in_flight(), std::min(stages - stage, microbatches));
        EXPECT_EQ((*schedule.plan()).size(), static_cast<size_t>(2 * microbatches));
      }
    }
  }
}

TEST(Schedule, AListWaitsForItsNextAction) {
  const ListSchedule schedule("1f1b", one_forward_one_backward_actions({0, 2, 3}));  // F0 F1 B0 F2 B1 B2
  const std::vector<ReadyTask> ready{
      {backward, 1, 7}, {forward, 2, 5}, {TaskKind::norm, 0, 9}, {TaskKind::load, -1, 1}};
  EXPECT_EQ(schedule.choose(ready, {2, 0}), 3u) << "B0 is not there: what no schedule orders, as listed";
  EXPECT_EQ(schedule.choose(ready, {2, 1}), 1u) << "F2";
  EXPECT_EQ(schedule.choose(ready, {3, 1}), 0u) << "B1";
  EXPECT_EQ(schedule.choose(std::span(ready).first(2), {2, 0}), Schedule::none);
  EXPECT_EQ(schedule.awaited({2, 0}), backward);
  EXPECT_EQ(schedule.awaited({2, 1}), forward);
  EXPECT_EQ(schedule.awaited({3, 3}), TaskKind::reduce);
}

TEST(Schedule, ArrivalTakesWhatHasComeBackwardFirst) {
  const ArrivalSchedule schedule({0, 2, 9}, 3, /*in_order=*/false);
  const std::vector<ReadyTask> ready{{forward, 4, 0}, {backward, 1, 3}, {backward, 0, 2}, {forward, 2, 1}};
  EXPECT_EQ(schedule.choose(ready, {3, 0}), 1u) << "the backward pass that came first";
  const std::vector<ReadyTask> forwards{{forward, 4, 0}, {forward, 2, 1}};
  EXPECT_EQ(schedule.choose(forwards, {3, 1}), 0u);
  EXPECT_EQ(schedule.choose(forwards, {3, 0}), Schedule::none) << "three are in flight";
  EXPECT_EQ(schedule.awaited({3, 0}), backward);
  EXPECT_EQ(schedule.awaited({3, 1}), forward);
  EXPECT_EQ(schedule.awaited({9, 9}), TaskKind::reduce);
}

TEST(Schedule, ArrivalInOrderKeepsTheMicrobatchesInTheirOrder) {
  const ArrivalSchedule schedule({0, 2, 9}, 3, /*in_order=*/true);
  const std::vector<ReadyTask> ready{{backward, 1, 3}, {forward, 4, 0}, {forward, 3, 1}};
  EXPECT_EQ(schedule.choose(ready, {3, 1}), 0u);
  EXPECT_EQ(schedule.choose(ready, {3, 0}), Schedule::none);
  EXPECT_EQ(schedule.choose(std::span(ready).subspan(1), {3, 2}), 1u);
}

TEST(Schedule, ByName) {
  EXPECT_STREQ(make_schedule(ScheduleKind::gpipe, {0, 2, 4}, {})->name(), "gpipe");
  EXPECT_STREQ(make_schedule(ScheduleKind::one_forward_one_backward, {0, 2, 4}, {})->name(), "1f1b");
  const auto arrival = make_schedule(ScheduleKind::arrival, {0, 4, 9}, {});
  EXPECT_STREQ(arrival->name(), "arrival");
  EXPECT_EQ(arrival->in_flight(), 4);
  EXPECT_EQ(make_schedule(ScheduleKind::arrival, {0, 4, 9}, {.in_flight = 7})->in_flight(), 7);
  EXPECT_EQ(make_schedule(ScheduleKind::arrival, {0, 4, 2}, {.in_flight = 7})->in_flight(), 2);
}

}  // namespace
}  // namespace trireme
