// Who is named as the one that others wait for: by made-up times, so that the rule is tested and not this machine.
#include "trireme/observe/stragglers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "trireme/base/random.h"

namespace trireme {
namespace {

// Times of a step that scatter: mostly near 1, and now and then far beyond, as on cores that others use.
class Noise {
 public:
  explicit Noise(uint64_t seed) : key_(Key{seed}.with("noise")) {}

  double time(double mean, double spread) {
    const double bell = uniform(key_, draws_) + uniform(key_, draws_ + 1) + uniform(key_, draws_ + 2) - 1.5;
    const double outlier = uniform(key_, draws_ + 3) < 0.1 ? 5 * uniform(key_, draws_ + 4) : 0;
    draws_ += 5;
    return mean * (1 + spread * bell + outlier);
  }

 private:
  Key key_;
  uint64_t draws_ = 0;
};

// The ranks that are named in so many windows of steps.
std::vector<Straggler> named(int replicas, int windows, const std::function<std::vector<double>()>& busy) {
  Stragglers stragglers(replicas);
  std::vector<Straggler> found;
  for (size_t step = 0; step < static_cast<size_t>(windows) * Stragglers::window; ++step) {
    if (const auto one = stragglers.step(busy())) found.push_back(*one);
  }
  return found;
}

TEST(Stragglers, EqualRanksAreNotNamed) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const int ranks : {2, 3, 8}) {
      for (const double spread : {0.01, 0.2, 1.0}) {
        Noise noise(seed);
        const auto found = named(ranks, 5, [&] {
          std::vector<double> busy;
          for (int rank = 0; rank < ranks; ++rank) busy.push_back(noise.time(0.1, spread));
          return busy;
        });
        EXPECT_TRUE(found.empty()) << ranks << " ranks, spread " << spread << ", seed " << seed << ": rank "
                                   << found[0].rank << ", factor " << found[0].factor();
      }
    }
  }
}

TEST(Stragglers, OneOfTwiceTheTimeIsNamed) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const int ranks : {2, 3, 8}) {
      for (const double spread : {0.0, 0.1, 0.3}) {
        Noise noise(seed);
        const int slow = static_cast<int>(seed) % ranks;
        const auto found = named(ranks, 2, [&] {
          std::vector<double> busy;
          for (int rank = 0; rank < ranks; ++rank) busy.push_back(noise.time(rank == slow ? 0.2 : 0.1, spread));
          return busy;
        });
        ASSERT_EQ(found.size(), 1u) << ranks << " ranks, spread " << spread << ", seed " << seed;
        EXPECT_EQ(found[0].rank, slow);
        EXPECT_GT(found[0].factor(), 1.5);
        EXPECT_EQ(found[0].stage_s.size(), static_cast<size_t>(ranks));
        EXPECT_EQ(found[0].stage_s[static_cast<size_t>(slow)], found[0].busy_s);
      }
    }
  }
}

TEST(Stragglers, ALittleSlowerOrSlowForAMomentIsNotEnough) {
  EXPECT_TRUE(named(2, 3, [] { return std::vector<double>{1, 1.19}; }).empty());
  EXPECT_EQ(named(2, 2, [] { return std::vector<double>{1, 1.21}; }).size(), 1u);
  int step = 0;
  EXPECT_TRUE(named(2, 3, [&] { return std::vector<double>{1, ++step % 20 < 9 ? 50.0 : 1.0}; }).empty());
  EXPECT_TRUE(named(2, 3, [] { return std::vector<double>{0, 0}; }).empty());
}

TEST(Stragglers, MustBeSlowInTwoWindowsRunning) {
  const auto in_windows = [](const std::vector<int>& slow) {
    size_t step = 0;
    return named(2, static_cast<int>(slow.size()), [&] {
      const int rank = slow[step++ / Stragglers::window];
      return std::vector<double>{rank == 0 ? 2.0 : 1.0, rank == 1 ? 2.0 : 1.0};
    });
  };
  EXPECT_TRUE(in_windows({1}).empty());
  EXPECT_TRUE(in_windows({1, -1, 1}).empty());
  EXPECT_TRUE(in_windows({1, 0, 1, 0}).empty());
  EXPECT_EQ(in_windows({0, 1, 1}).size(), 1u);
}

TEST(Stragglers, TwoSlowOnesOfThreeDoNotHideEachOther) {
  const auto found = named(3, 2, [] { return std::vector<double>{2, 2.1, 1}; });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
}

// Stages differ by design: ranks 0, 1 are the first stage, ranks 2, 3 the second.
TEST(Stragglers, RanksAreComparedInsideTheirStage) {
  EXPECT_TRUE(named(2, 3, [] { return std::vector<double>{1, 1, 5, 5}; }).empty());
  EXPECT_TRUE(named(1, 3, [] { return std::vector<double>{1, 9, 5, 5}; }).empty()) << "one replica a stage";
  const auto found = named(2, 2, [] { return std::vector<double>{1, 1.5, 15, 5}; });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].factor(), 3);
  EXPECT_EQ(found[0].stage_s, (std::vector<double>{15, 5}));
}

TEST(Stragglers, SpeaksMoreAndMoreRarely) {
  Stragglers stragglers(2);
  std::vector<size_t> spoken;
  for (size_t step = 1; step <= 200 * Stragglers::window; ++step) {
    if (stragglers.step({1, 2})) spoken.push_back(step / Stragglers::window);
  }
  EXPECT_EQ(spoken, (std::vector<size_t>{2, 13, 34, 75, 156}));
}

TEST(AwaitedRank, IsTheOneThatWasBusyLongestInItsStage) {
  const auto one = awaited_rank({1, 4, 2}, 3);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->rank, 1);
  EXPECT_DOUBLE_EQ(one->seconds, 2.5);
  const auto staged = awaited_rank({10, 10.5, 3, 2}, 2);
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->rank, 2);
  EXPECT_DOUBLE_EQ(staged->seconds, 1);
  EXPECT_FALSE(awaited_rank({1, 2}, 1));
  EXPECT_FALSE(awaited_rank({}, 2));
}

}  // namespace
}  // namespace trireme
