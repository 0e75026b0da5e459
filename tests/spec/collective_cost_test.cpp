#include "trireme/spec/collective_cost.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr Algorithm all[] = {Algorithm::doubling, Algorithm::halving, Algorithm::ring, Algorithm::trees};

TEST(CollectiveCost, OneRankCostsNothing) {
  const LinkCost link{1e-6, 1e-9, 1e-10};
  for (const auto one : all) EXPECT_EQ(all_reduce_seconds(one, 1, 1 << 20, link), 0);
  EXPECT_EQ(broadcast_seconds(1, 1 << 20, link), 0);
  EXPECT_EQ(all_gather_seconds(1, 1 << 20, link), 0);
}

// Two ranks, by hand: each sends half and gets half, twice.
TEST(CollectiveCost, TwoRanksByHand) {
  const LinkCost link{5e-6, 2e-9, 1e-10};
  const double n = 1e6;
  EXPECT_DOUBLE_EQ(all_reduce_seconds(Algorithm::doubling, 2, 1'000'000, link), 5e-6 + n * 2e-9 + n * 1e-10);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(Algorithm::ring, 2, 1'000'000, link), 2 * 5e-6 + n * 2e-9 + n / 2 * 1e-10);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(Algorithm::halving, 2, 1'000'000, link), 2 * 5e-6 + n * 2e-9 + n / 2 * 1e-10);
  EXPECT_DOUBLE_EQ(least_all_reduce_bytes(2, 1'000'000), n);
}

TEST(CollectiveCost, RingAndHalvingReachTheBandwidthBound) {
  const LinkCost wire{0, 1e-9, 0};
  for (const int ranks : {2, 4, 8, 16, 64}) {
    for (const int64_t bytes : {4 << 20, 64 << 20}) {
      const double least = least_all_reduce_bytes(ranks, bytes) * 1e-9;
      EXPECT_NEAR(all_reduce_seconds(Algorithm::ring, ranks, bytes, wire), least, 1e-12);
      // Longer messages of partners wait for each other.
      EXPECT_NEAR(all_reduce_seconds(Algorithm::halving, ranks, bytes, wire), bytes > 4 << 20 ? 1.5 * least : least,
                  1e-12);
    }
  }
}

TEST(CollectiveCost, FewMessagesWinWhenSmallAndFewBytesWhenLarge) {
  const LinkCost link{2e-5, 1e-9, 1e-10};
  for (const int ranks : {4, 8, 16}) {
    EXPECT_EQ(choose_all_reduce(ranks, 64, link), Algorithm::doubling);
    EXPECT_NE(choose_all_reduce(ranks, 64 << 20, link), Algorithm::doubling);
  }
  // Where folding costs two more transfers of everything, the ring is better.
  EXPECT_EQ(choose_all_reduce(6, 64 << 20, link), Algorithm::ring);
  EXPECT_EQ(choose_all_reduce(2, 64 << 20, link), Algorithm::ring);
  EXPECT_EQ(choose_all_reduce(4, 1 << 20, link), Algorithm::halving);
  EXPECT_EQ(choose_all_reduce(4, 64 << 20, link), Algorithm::ring);
}

TEST(CollectiveCost, WhatIsChosenIsTheCheapest) {
  for (const double alpha : {1e-7, 1e-5, 1e-3}) {
    for (const int ranks : {2, 3, 5, 8, 100, 4096}) {
      for (const int64_t bytes : {int64_t{4}, int64_t{65'536}, int64_t{1} << 30}) {
        const LinkCost link{alpha, 1e-9, 1e-10};
        const auto chosen = choose_all_reduce(ranks, bytes, link);
        for (const auto other : all)
          EXPECT_LE(all_reduce_seconds(chosen, ranks, bytes, link), all_reduce_seconds(other, ranks, bytes, link));
      }
    }
  }
}

TEST(CollectiveCost, HostsShareTheirLink) {
  const LinkCost inside{1e-6, 1e-10, 1e-10}, between{5e-5, 1.6e-8, 0};
  const double flat = all_reduce_seconds(Algorithm::ring, 8, 64 << 20, between);
  EXPECT_LT(hierarchical_all_reduce_seconds(2, 4, 64 << 20, inside, between), flat / 3);
  EXPECT_DOUBLE_EQ(hierarchical_all_reduce_seconds(2, 1, 1 << 20, inside, between),
                   all_reduce_seconds(choose_all_reduce(2, 1 << 20, between), 2, 1 << 20, between));
}

}  // namespace
}  // namespace trireme
