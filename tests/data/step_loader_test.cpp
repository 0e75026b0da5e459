#include "trireme/data/step_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/data/temporary.h"
#include "trireme/data/synthetic.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;

// Delegates to synthetic data, counts what is read, and fails at a sample if told to.
class Watched final : public Dataset {
 public:
  enum class Failure { none, ours, foreign };

  int64_t size() const override { return inner_.size(); }
  Batch get(std::span<const int64_t> samples) const override {
    ++reads;
    if (reads > reads_before_failure) {
      if (failure == Failure::ours) refuse("sample {} is bad", samples[0]);
      if (failure == Failure::foreign) throw std::runtime_error("out of luck");
    }
    std::this_thread::sleep_for(delay);
    return inner_.get(samples);
  }
  int64_t vocab() const override { return inner_.vocab(); }
  int64_t items_per_sample() const override { return inner_.items_per_sample(); }
  std::string items() const override { return inner_.items(); }
  std::string describe() const override { return inner_.describe(); }

  mutable std::atomic<int> reads = 0;
  int reads_before_failure = 0;
  Failure failure = Failure::none;
  std::chrono::milliseconds delay = 0ms;

 private:
  SyntheticTokens inner_{100, 8, 32, 1};
};

TEST(StepLoader, GivesWhatDirectReadingGives) {
  const SyntheticTokens dataset(100, 8, 32, 1);
  const SampleOrder order(100, 24, 9);
  for (const int ranks : {1, 3}) {
    for (const int64_t microbatch : {0, 3, 5}) {
      const Share share = share_of(24, ranks - 1, ranks);
      const auto pieces = microbatches(share, microbatch);
      StepLoader loader(dataset, order, microbatches(share, microbatch), 7);
      for (int64_t step = 7; step < 20; ++step) {
        const LoadedStep loaded = loader.next();
        ASSERT_EQ(loaded.step, step);
        ASSERT_EQ(loaded.microbatches.size(), pieces.size());
        for (size_t i = 0; i < pieces.size(); ++i) {
          std::vector<int64_t> samples;
          order.fill(step, pieces[i].first, pieces[i].count, samples);
          const Batch direct = dataset.get(samples);
          EXPECT_TRUE(at::equal(loaded.microbatches[i].inputs, direct.inputs));
          EXPECT_TRUE(at::equal(loaded.microbatches[i].targets, direct.targets));
          const int64_t first = step * 24 + pieces[i].first;
          EXPECT_TRUE(at::equal(loaded.microbatches[i].positions, at::arange(first, first + pieces[i].count)));
        }
      }
    }
  }
}

TEST(StepLoader, GivesNothingForAnEmptyShare) {
  const SyntheticTokens dataset(100, 8, 32, 1);
  StepLoader loader(dataset, SampleOrder(100, 2, 1), microbatches(share_of(2, 0, 3), 0), 0);
  EXPECT_TRUE(loader.next().microbatches.empty());
  EXPECT_EQ(loader.next().step, 1);
}

TEST(StepLoader, ReadsOneStepAheadAndNoFurther) {
  const Watched dataset;
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 2), 0);
  const auto expect_reads = [&](int reads) {
    for (int i = 0; i < 1000 && dataset.reads < reads; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);  // long enough for one read too many to show
    EXPECT_EQ(dataset.reads, reads);
  };
  expect_reads(2);  // step 0, in two microbatches
  loader.next();
  expect_reads(4);  // step 1 while step 0 runs
  loader.next();
  expect_reads(6);
}

TEST(StepLoader, BuildsAsManyStepsAheadAsItHasThreads) {
  Watched dataset;
  dataset.delay = 1ms;
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 2), 3, {.threads = 4});
  const auto expect_reads = [&](int reads) {
    for (int i = 0; i < 1000 && dataset.reads < reads; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(dataset.reads, reads);
  };
  expect_reads(8);
  for (int64_t step = 3; step < 40; ++step) {
    const auto loaded = loader.next();
    EXPECT_EQ(loaded.step, step);
    std::vector<int64_t> samples;
    SampleOrder(100, 4, 1).fill(step, 2, 2, samples);
    EXPECT_TRUE(at::equal(loaded.microbatches[1].inputs, SyntheticTokens(100, 8, 32, 1).get(samples).inputs));
  }
  expect_reads(2 * (37 + 4));
}

TEST(StepLoader, HandsOutEverythingBeforeAFailure) {
  Watched dataset;
  dataset.failure = Watched::Failure::ours;
  dataset.reads_before_failure = 5;  // which of the steps 0 to 5 meets the sixth read is nobody's to say
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 0), 0, {.threads = 3});
  int64_t steps = 0;
  const std::string message = refusal_of([&] {
    for (;; ++steps) EXPECT_EQ(loader.next().step, steps);
  });
  EXPECT_THAT(message, testing::StartsWith(fmt::format("loading step {}: sample ", steps)));
  EXPECT_EQ(refusal_of([&] { loader.next(); }), message);
  EXPECT_GE(steps, 3);
  EXPECT_LE(steps, 5);
}

TEST(StepLoader, ReadsNothingForAStageThatSeesNoSamples) {
  const Watched dataset;
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 2), 0, {.reads = false});
  const auto loaded = loader.next();
  EXPECT_FALSE(loaded.microbatches[1].inputs.defined());
  EXPECT_TRUE(at::equal(loaded.microbatches[1].positions, at::arange(2, 4)));
  EXPECT_EQ(loaded.learnt_targets, 32);
  EXPECT_EQ(dataset.reads, 0);
}

TEST(StepLoader, RethrowsWhatGoesWrongAndWhere) {
  Watched dataset;
  dataset.failure = Watched::Failure::ours;
  dataset.reads_before_failure = 2;
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 0), 5);
  EXPECT_EQ(loader.next().step, 5);
  EXPECT_EQ(loader.next().step, 6);
  const std::string message = refusal_of([&] { loader.next(); });
  EXPECT_THAT(message, testing::MatchesRegex("loading step 7: sample [0-9]+ is bad"));
  EXPECT_EQ(refusal_of([&] { loader.next(); }), message);
  EXPECT_EQ(dataset.reads, 3);
}

TEST(StepLoader, RethrowsForeignExceptions) {
  Watched dataset;
  dataset.failure = Watched::Failure::foreign;
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 0), 0);
  EXPECT_THROW(loader.next(), std::runtime_error);
}

TEST(StepLoader, ReportsAShareOutsideTheBatch) {
  const SyntheticTokens dataset(100, 8, 32, 1);
  StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({2, 4}, 0), 0);
  EXPECT_THROW(loader.next(), Error);
}

TEST(StepLoader, FailsOnAnOrderOfAnotherDataset) {
  const SyntheticTokens dataset(100, 8, 32, 1);
  EXPECT_THROW(StepLoader(dataset, SampleOrder(99, 4, 1), microbatches({0, 4}, 0), 0), Error);
}

TEST(StepLoader, EndsAtAnyMoment) {
  for (int round = 0; round < 50; ++round) {  // before, in the middle of and after a read
    Watched dataset;
    dataset.delay = std::chrono::milliseconds(round % 3);
    StepLoader loader(dataset, SampleOrder(100, 4, 1), microbatches({0, 4}, 2), 0);
    for (int step = 0; step < round % 4; ++step) loader.next();
  }
  Watched failing;
  failing.failure = Watched::Failure::ours;
  StepLoader never_asked(failing, SampleOrder(100, 4, 1), microbatches({0, 4}, 0), 0);
}

TEST(StepLoader, ServesManyRanksOfOneProcess) {
  const SyntheticTokens dataset(100, 8, 32, 1);
  const SampleOrder order(100, 16, 1);
  std::vector<std::unique_ptr<StepLoader>> loaders;
  for (int rank = 0; rank < 4; ++rank) {
    loaders.push_back(std::make_unique<StepLoader>(dataset, order, microbatches(share_of(16, rank, 4), 0), 0));
  }
  for (int64_t step = 0; step < 50; ++step) {
    std::vector<at::Tensor> inputs;
    for (const auto& loader : loaders) inputs.push_back(loader->next().microbatches[0].inputs);
    std::vector<int64_t> samples;
    order.fill(step, 0, 16, samples);
    EXPECT_TRUE(at::equal(at::cat(inputs), dataset.get(samples).inputs));
  }
}

}  // namespace
}  // namespace trireme
