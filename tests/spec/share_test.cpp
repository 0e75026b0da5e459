// How samples are dealt: none lost, none twice, to each by its weight.
#include "trireme/spec/share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {
namespace {

using testing::ElementsAre;

std::vector<int64_t> counts(int64_t batch, const std::vector<double>& weights) {
  std::vector<int64_t> found;
  int64_t next = 0;
  for (const auto& share : deal(batch, static_cast<int>(weights.size()), weights)) {
    EXPECT_EQ(share.first, next);
    EXPECT_GE(share.count, 0);
    next += share.count;
    found.push_back(share.count);
  }
  EXPECT_EQ(next, batch);
  return found;
}

std::string refusal(int64_t batch, int replicas, const std::vector<double>& weights) {
  try {
    check_weights(batch, replicas, weights);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 2) << error.what();
    return error.what();
  }
  return "(accepted)";
}

TEST(Share, SplitsABatchEvenly) {
  for (const int64_t batch : {0, 1, 7, 8, 64, 1000}) {
    for (const int ranks : {1, 2, 3, 8, 13}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Share share = share_of(batch, rank, ranks);
        EXPECT_EQ(share.first, next);
        EXPECT_TRUE(share.count == batch / ranks || share.count == batch / ranks + 1);
        next += share.count;
      }
      EXPECT_EQ(next, batch);
    }
  }
  EXPECT_THROW(share_of(8, 2, 2), Error);
  EXPECT_THROW(share_of(8, -1, 2), Error);
  EXPECT_THROW(share_of(8, 0, 2, {1, 2, 3}), Error);
}

TEST(Share, FollowsTheWeights) {
  EXPECT_THAT(counts(16, {3, 1}), ElementsAre(12, 4));
  EXPECT_THAT(counts(16, {0.03, 0.01}), ElementsAre(12, 4));
  EXPECT_THAT(counts(8, {5, 2, 1}), ElementsAre(5, 2, 1));
  EXPECT_THAT(counts(7, {5, 2, 1}), ElementsAre(4, 2, 1));
  EXPECT_THAT(counts(3, {1.1, 1}), ElementsAre(2, 1));
  EXPECT_THAT(counts(3, {1, 1.1}), ElementsAre(1, 2));
  EXPECT_THAT(counts(5, {4}), ElementsAre(5));
  EXPECT_THAT(counts(8, {1e308, 1e308, 5e307}), ElementsAre(3, 3, 2));
  EXPECT_THAT(counts(16, {1e300, 1e-300}), ElementsAre(16, 0));
}

TEST(Share, EqualWeightsAreNoWeights) {
  for (const int64_t batch : {3, 7, 8, 100}) {
    for (const int replicas : {1, 2, 3, 7}) {
      for (const double weight : {0.1, 1.0, 7e200})
        EXPECT_EQ(deal(batch, replicas, std::vector<double>(static_cast<size_t>(replicas), weight)),
                  deal(batch, replicas));
    }
  }
}

// Whatever the weights are: every sample once, nobody a whole sample from its proportion, and more for a larger weight.
TEST(Share, HoldsForAnyWeights) {
  uint64_t draw = 0;
  const auto random = [&] { return uniform(Key{5}.with("weights"), draw++); };
  for (int round = 0; round < 2000; ++round) {
    const auto replicas = static_cast<size_t>(1 + std::floor(9 * random()));
    const auto batch = static_cast<int64_t>(300 * random() * random());
    std::vector<double> weights;
    for (size_t i = 0; i < replicas; ++i)
      weights.push_back(round % 2 == 0 ? 0.01 + random() : 1 + std::floor(6 * random()));
    const bool equal = std::all_of(weights.begin(), weights.end(), [&](double one) { return one == weights[0]; });
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const auto found = counts(batch, weights);
    for (size_t i = 0; i < replicas; ++i) {
      EXPECT_LT(std::abs(static_cast<double>(found[i]) - static_cast<double>(batch) * weights[i] / sum), 1 + 1e-9);
      for (size_t j = 0; j < replicas && !equal; ++j) {
        EXPECT_TRUE(weights[i] <= weights[j] || found[i] >= found[j]);
      }
    }
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << batch << " samples by " << testing::PrintToString(weights);
      return;
    }
    // The counts are weights too, and deal the same.
    if (std::find(found.begin(), found.end(), 0) == found.end() && !equal) {
      EXPECT_EQ(counts(batch, std::vector<double>(found.begin(), found.end())), found);
    }
  }
}

TEST(Share, RefusesWeightsThatDoNotFit) {
  EXPECT_EQ(refusal(8, 2, {}), "(accepted)");
  EXPECT_EQ(refusal(8, 2, {3, 1}), "(accepted)");
  EXPECT_EQ(refusal(8, 3, {3, 1}),
            "parallel.shares = [3, 1] is for 2 replicas, but the ranks make 3: give one number for each, or "
            "parallel.shares=[] to deal equally");
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_EQ(refusal(8, 2, {3, wrong}),
              fmt::format("parallel.shares = [3, {}]: each must be above 0, and finite", wrong));
  }
}

TEST(Share, RefusesToLeaveAReplicaWithoutASample) {
  EXPECT_EQ(refusal(16, 2, {100, 1}),
            "parallel.shares = [100, 1] leaves replica 1 without any of the train.batch = 16 samples: give it at least "
            "6.7 there, or raise train.batch to 101");
  // What it says will do does.
  EXPECT_EQ(refusal(16, 2, {100, 6.7}), "(accepted)");
  EXPECT_EQ(refusal(101, 2, {100, 1}), "(accepted)");
  EXPECT_THAT(refusal(8, 3, {1e-9, 1, 1}), testing::HasSubstr("leaves replica 0 without any"));
  EXPECT_THAT(refusal(8, 2, {1e300, 1e-300}), testing::HasSubstr("leaves replica 1 without any"));
}

TEST(Share, IsEvenedByTheTimesThatItTakes) {
  EXPECT_THAT(evened(deal(16, 2), {2, 1}), ElementsAre(5, 11));
  EXPECT_THAT(evened(deal(16, 2, {3, 1}), {3, 1}), ElementsAre(8, 8));
  EXPECT_THAT(evened(deal(12, 3), {1, 2, 2}), ElementsAre(6, 3, 3));
  // The numbers that it gives deal just so.
  EXPECT_THAT(counts(16, {5, 11}), ElementsAre(5, 11));
  EXPECT_THAT(evened(deal(16, 2), {1, 1.01}), testing::IsEmpty()) << "as they are";
  EXPECT_THAT(evened(deal(2, 2), {1, 9}), testing::IsEmpty()) << "one would have none";
  EXPECT_THAT(evened(deal(2, 2), {1, 0}), testing::IsEmpty());
}

TEST(Microbatches, CutAShareInOrder) {
  EXPECT_EQ(microbatches({10, 8}, 3), (std::vector<Share>{{10, 3}, {13, 3}, {16, 2}}));
  EXPECT_EQ(microbatches({10, 8}, 4), (std::vector<Share>{{10, 4}, {14, 4}}));
  EXPECT_EQ(microbatches({10, 8}, 0), (std::vector<Share>{{10, 8}}));
  EXPECT_EQ(microbatches({10, 8}, 100), (std::vector<Share>{{10, 8}}));
  EXPECT_TRUE(microbatches({10, 0}, 0).empty());
  EXPECT_THROW(microbatches({0, 8}, -1), Error);
}

}  // namespace
}  // namespace trireme
