#include "trireme/base/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {
namespace {

const Key key = Key{1}.with("test");

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

template <class Draw>
Moments moments(Draw draw, int count) {
  std::array<double, 5> powers{};
  for (int i = 0; i < count; ++i) {
    double power = 1;
    for (auto& sum : powers) {
      sum += power / count;
      power *= draw(i);
    }
  }
  const double mean = powers[1], variance = powers[2] - mean * mean;
  const double third = powers[3] - 3 * mean * powers[2] + 2 * mean * mean * mean;
  const double fourth = powers[4] - 4 * mean * powers[3] + 6 * mean * mean * powers[2] - 3 * std::pow(mean, 4);
  return {mean, variance, third / std::pow(variance, 1.5), fourth / (variance * variance)};
}

// Frozen: runs are replayed from their seed, so these streams must never change by accident.
TEST(RandomTest, StreamsAreFrozen) {
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafULL);  // the first output of SplitMix64 from state 0, as published
  EXPECT_EQ(Key{1}.with("dropout").with(7).value, 0x856b6a420293edbcULL);
  EXPECT_EQ(bits32(key, 0), 0xa9ed315fU);
  EXPECT_EQ(bits32(key, 1), 0x4c033941U);
  EXPECT_EQ(bits32(key, 0xffffffffU), 0xf190bb19U);
  EXPECT_EQ(bits64(key, 0), 0xc43e163e12ca4185ULL);
  EXPECT_EQ(bits64(key, 1ULL << 40), 0x69255c839841be8fULL);
  EXPECT_DOUBLE_EQ(uniform(key, 5), 0.80293867715692546);
  EXPECT_NEAR(normal(key, 5), 0.27127739368944065, 1e-12);
}

TEST(RandomTest, APermutationIsFrozen) {
  const Permutation permutation(10, key);
  std::vector<uint64_t> places;
  for (uint64_t i = 0; i < 10; ++i) places.push_back(permutation(i));
  EXPECT_EQ(places, (std::vector<uint64_t>{8, 7, 0, 6, 9, 2, 1, 3, 4, 5}));
}

TEST(RandomTest, KeysDependOnEveryNameNumberAndTheirOrder) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1, 2}) {
    for (const char* name : {"", "a", "b", "ab", "ba"}) {
      for (uint64_t number : {0, 1, 2}) {
        seen.insert(Key{seed}.with(name).with(number).value);
        seen.insert(Key{seed}.with(number).with(name).value);
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 5u * 3u * 2u);
  EXPECT_NE(key.with(1).with(2).value, key.with(2).with(1).value);
}

TEST(RandomTest, UniformFillsItsIntervalEvenly) {
  const int count = 200000;
  const auto [mean, variance, skewness, kurtosis] = moments([](int i) { return uniform(key, i); }, count);
  EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_NEAR(variance, 1.0 / 12, 1e-3);
  EXPECT_NEAR(skewness, 0, 0.02);
  EXPECT_NEAR(kurtosis, 1.8, 0.02);
  for (int i = 0; i < count; ++i) {
    ASSERT_GE(uniform(key, i), 0.0);
    ASSERT_LT(uniform(key, i), 1.0);
  }
}

TEST(RandomTest, NormalHasTheMomentsOfABell) {
  const int count = 200000;
  const auto [mean, variance, skewness, kurtosis] = moments([](int i) { return normal(key, i); }, count);
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(variance, 1, 0.02);
  EXPECT_NEAR(skewness, 0, 0.03);
  EXPECT_NEAR(kurtosis, 3, 0.06);
}

TEST(RandomTest, NeighbouringDrawsAreIndependent) {
  const int count = 200000;
  double uniform_sum = 0, normal_sum = 0;
  for (int i = 0; i < count; ++i) {
    uniform_sum += (uniform(key, i) - 0.5) * (uniform(key, i + 1) - 0.5);
    normal_sum += normal(key, i) * normal(key, i + 1);
  }
  EXPECT_NEAR(uniform_sum / count * 12, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(normal_sum / count, 0, 5 / std::sqrt(count));
}

// Every output bit is set half of the time, whatever the stream: masks compare whole words with a threshold, but
// quantizers take single bits.
TEST(RandomTest, Bits32AreBalanced) {
  const int count = 100000;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::array<int, 32> ones{};
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t word = bits32(Key{seed}, i);
      for (int bit = 0; bit < 32; ++bit) ones[bit] += word >> bit & 1;
    }
    for (int bit = 0; bit < 32; ++bit) {
      EXPECT_NEAR(ones[bit], count / 2, 5 * std::sqrt(count) / 2) << "seed " << seed << ", bit " << bit;
    }
  }
}

// The bits in which two streams agree number half of all, also when their keys differ in one bit only.
TEST(RandomTest, Bits32OfNeighbouringKeysAreIndependent) {
  const int count = 20000;
  for (int flipped = 0; flipped < 64; ++flipped) {
    const Key neighbour{key.value ^ (uint64_t{1} << flipped)};
    int64_t agreeing = 0;
    for (uint32_t i = 0; i < count; ++i) agreeing += std::popcount(~(bits32(key, i) ^ bits32(neighbour, i)));
    EXPECT_NEAR(agreeing, 16.0 * count, 5 * std::sqrt(32.0 * count) / 2) << "bit " << flipped << " of the key";
  }
}

TEST(RandomTest, Bits32OfNeighbouringPlacesAreIndependent) {
  const int count = 200000;
  for (uint32_t distance : {1u, 2u, 3u, 64u, 1024u, 65536u}) {
    int64_t agreeing = 0;
    for (uint32_t i = 0; i < count; ++i) agreeing += std::popcount(~(bits32(key, i) ^ bits32(key, i + distance)));
    EXPECT_NEAR(agreeing, 16.0 * count, 5 * std::sqrt(32.0 * count) / 2) << distance << " apart";
  }
}

TEST(PermutationTest, VisitsEveryPlaceOnce) {
  std::vector<uint64_t> sizes = {255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4097, 65536, 65537, 100003};
  for (uint64_t size = 1; size <= 70; ++size) sizes.push_back(size);
  for (uint64_t size : sizes) {
    const Permutation permutation(size, key.with(size));
    EXPECT_EQ(permutation.size(), size);
    std::vector<bool> visited(size);
    for (uint64_t place = 0; place < size; ++place) {
      const uint64_t target = permutation(place);
      ASSERT_LT(target, size);
      ASSERT_FALSE(visited[target]) << "twice " << target << " of " << size;
      visited[target] = true;
    }
  }
}

TEST(PermutationTest, HugeSizesStayInside) {
  for (uint64_t size : {(uint64_t{1} << 62) + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    const Permutation permutation(size, key);
    std::set<uint64_t> seen;
    for (uint64_t place = 0; place < 1000; ++place) seen.insert(permutation(size - 1 - place));
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

TEST(PermutationTest, DependsOnItsKey) {
  const Permutation one(1000, key.with(1)), two(1000, key.with(2));
  int same = 0;
  for (uint64_t place = 0; place < 1000; ++place) same += one(place) == two(place);
  EXPECT_LT(same, 12);  // one in the mean
}

// An element lands everywhere: over many keys, each eighth of the places is hit equally often (chi-squared).
TEST(PermutationTest, SpreadsAnElementOverAllPlaces) {
  constexpr int parts = 8, keys = 20000;
  for (uint64_t size : {8, 64, 1000}) {
    for (uint64_t place : {uint64_t{0}, size / 2, size - 1}) {
      std::array<int, parts> hits{};
      for (uint64_t i = 0; i < keys; ++i) ++hits[Permutation(size, key.with(i))(place) * parts / size];
      double chi_squared = 0;
      for (int hit : hits) chi_squared += std::pow(hit - keys / parts, 2) / (keys / parts);
      EXPECT_LT(chi_squared, 30) << place << " of " << size;  // 7 degrees of freedom: one true permutation in 10,000
    }
  }
}

TEST(PermutationTest, OfNothingFails) { EXPECT_THROW(Permutation(0, key), Error); }

}  // namespace
}  // namespace trireme
