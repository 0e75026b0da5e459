// What is said about a rank that keeps others waiting, and how busy times reach everybody.
#include "trireme/train/straggler_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/train/small.h"

namespace trireme {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(StragglerWatch, NamesRankHostFactorAndShares) {
  const Straggler slow{.rank = 1, .busy_s = 0.4, .others_s = 0.2, .stage_s = {0.2, 0.4}};
  EXPECT_EQ(describe(slow, "node7", {.stages = 1, .replicas_by_stage = {2}}, deal(16, 2)),
            "rank 1 on host node7 keeps the others waiting: it is busy for 400.0 ms of a step, they for 200.0 ms (2.0 "
            "times as long, medians of 20 steps). See what else runs there, or deal it fewer samples with "
            "parallel.shares=[11,5]");
  // Shares that are wrong already are put right.
  EXPECT_THAT(
      describe({.rank = 0, .busy_s = 3, .others_s = 1, .stage_s = {3, 1}}, "node7", {1, {2}}, deal(16, 2, {3, 1})),
      HasSubstr("parallel.shares=[8,8]"));
  EXPECT_THAT(describe(slow, "node7", {1, {2}}, deal(2, 2)),
              AllOf(HasSubstr("too few samples"), Not(HasSubstr("parallel.shares"))));
}

TEST(StragglerWatch, SpeaksOfTheStage) {
  const Straggler slow{.rank = 3, .busy_s = 0.4, .others_s = 0.2, .stage_s = {0.2, 0.4}};
  EXPECT_THAT(describe(slow, "node7", {.stages = 2, .replicas_by_stage = {2, 2}}, deal(12, 2)),
              AllOf(HasSubstr("rank 3 on host node7 keeps the other replicas of stage 1 waiting"),
                    HasSubstr("parallel.shares=[8,4]")));
}

// Every rank knows everybody's time, by the same sum as the loss. Rank 1 is held up in each task.
TEST(StragglerWatch, BusyTimesOfAllRanksAreInEveryReport) {
  for (const int stages : {1, 2}) {
    auto config = small_mlp();
    config.parallel.pipe = stages;
    config.train.microbatch = 1;
    std::mutex mutex;
    std::vector<std::vector<double>> seen;
    const int ranks = 2 * stages;
    World::run_threads(ranks, [&](World& world) {
      at::set_num_threads(1);
      const Split data = open_dataset(data_options(config));
      StageTrainer trainer(config, world, data);
      if (world.rank() == 1) {
        trainer.executor().set_before_task([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
      }
      for (int step = 0; step < 3; ++step) {
        const auto report = trainer.step(false);
        ASSERT_EQ(report.busy_s.size(), static_cast<size_t>(ranks));
        // Its load and the two passes of each of its four samples are held up for five milliseconds at least.
        EXPECT_GE(report.busy_s[1], 9 * 0.005);
        for (const double busy : report.busy_s) EXPECT_GT(busy, 0);
        ASSERT_TRUE(report.waits_for);
        if (step == 2) {
          std::lock_guard lock(mutex);
          seen.push_back(report.busy_s);
        }
      }
    });
    ASSERT_EQ(seen.size(), static_cast<size_t>(ranks));
    for (const auto& one : seen) EXPECT_EQ(one, seen[0]);
  }
}

TEST(StragglerWatch, NobodyWaitsWhereThereIsNobodyElse) {
  const auto alone = run_trainer(small_mlp(), 1, 2).reports[1];
  EXPECT_TRUE(alone.busy_s.empty());
  EXPECT_FALSE(alone.waits_for);
  auto config = small_mlp();
  config.parallel.pipe = 2;
  config.train.microbatch = 1;
  const auto staged = run_trainer(config, 2, 2).reports[1];
  EXPECT_EQ(staged.busy_s.size(), 2u);
  EXPECT_FALSE(staged.waits_for) << "stages differ by design";
}

}  // namespace
}  // namespace trireme
