#include "trireme/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/data/temporary.h"

namespace trireme {
namespace {

std::vector<int64_t> samples_of(const SampleOrder& order, int64_t step, Share share) {
  std::vector<int64_t> samples;
  order.fill(step, share.first, share.count, samples);
  return samples;
}

TEST(SampleOrder, DoesNotDependOnTheNumberOfRanks) {
  const SampleOrder order(1000, 30, 1);
  for (const int64_t step : {0, 1, 33, 34, 1000}) {
    const auto alone = samples_of(order, step, share_of(30, 0, 1));
    for (const int ranks : {2, 3, 7, 8, 30, 40}) {
      std::vector<int64_t> together;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const Share& piece : microbatches(share_of(30, rank, ranks), 4)) {
          const auto part = samples_of(order, step, piece);
          together.insert(together.end(), part.begin(), part.end());
        }
      }
      EXPECT_EQ(together, alone) << "step " << step << ", ranks " << ranks;
    }
  }
}

TEST(SampleOrder, ReadsEverySampleOnceAnEpoch) {
  for (const int64_t size : {1, 2, 3, 10, 64, 100, 257}) {
    for (const int64_t batch : {1, 3, 10, 300}) {  // batches that divide an epoch, straddle epochs, span several
      const SampleOrder order(size, batch, 5);
      std::vector<int64_t> read;
      for (int64_t step = 0; std::ssize(read) < 4 * size; ++step) {
        const auto samples = samples_of(order, step, {0, batch});
        read.insert(read.end(), samples.begin(), samples.end());
      }
      for (int64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<int64_t> seen(read.begin() + epoch * size, read.begin() + (epoch + 1) * size);
        std::ranges::sort(seen);
        for (int64_t i = 0; i < size; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
      }
    }
  }
}

TEST(SampleOrder, DrawsEachEpochAndSeedAnew) {
  const SampleOrder order(100, 100, 1), same(100, 100, 1), other(100, 100, 2);
  const auto first = samples_of(order, 0, {0, 100});
  EXPECT_EQ(first, samples_of(same, 0, {0, 100}));
  EXPECT_NE(first, samples_of(order, 1, {0, 100}));
  EXPECT_NE(first, samples_of(other, 0, {0, 100}));
  EXPECT_FALSE(std::ranges::is_sorted(first));
}

// Batches lie end to end, so the same positions are read whatever the batch size is.
TEST(SampleOrder, DependsOnlyOnThePosition) {
  const SampleOrder small(50, 10, 1), large(50, 40, 1);
  for (int64_t step = 0; step < 20; ++step) {
    const int64_t position = small.position(step);
    EXPECT_EQ(samples_of(small, step, {0, 10}), samples_of(large, position / 40, {position % 40, 10}));
  }
}

TEST(SampleOrder, ReusesTheVectorItFills) {
  const SampleOrder order(1000, 64, 1);
  std::vector<int64_t> samples(64);
  const int64_t* before = samples.data();
  order.fill(3, 0, 10, samples);
  EXPECT_EQ(samples.size(), 10u);
  order.fill(1'000'000'000, 0, 64, samples);
  EXPECT_EQ(samples.data(), before);
}

TEST(SampleOrder, ReachesIntoHugeDatasets) {
  const int64_t size = int64_t{1} << 40;
  const auto samples = samples_of(SampleOrder(size, 4096, 1), 123'456'789, {0, 4096});
  EXPECT_TRUE(std::ranges::all_of(samples, [&](int64_t sample) { return sample >= 0 && sample < size; }));
  EXPECT_GT(std::ranges::max(samples), size / 2);
  EXPECT_LT(std::ranges::min(samples), size / 2);
}

TEST(SampleOrder, ChecksWhatItIsAsked) {
  EXPECT_EQ(refusal_of([] { SampleOrder(0, 1, 1); }), "there are no samples to put in order");
  EXPECT_EQ(refusal_of([] { SampleOrder(10, 0, 1); }), "a batch needs at least 1 sample, not 0");
  const SampleOrder order(10, 4, 1);
  std::vector<int64_t> samples;
  EXPECT_THROW(order.fill(-1, 0, 4, samples), Error);
  EXPECT_THROW(order.fill(0, 1, 4, samples), Error);
  EXPECT_THROW(order.fill(0, -1, 4, samples), Error);
  EXPECT_NO_THROW(order.fill(0, 4, 0, samples));
}

}  // namespace
}  // namespace trireme
