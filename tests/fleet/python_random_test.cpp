// The expected numbers come from CPython 3.11.
#include "trireme/fleet/python_random.h"

#include <gtest/gtest.h>

#include <string>

namespace trireme::fleet {
namespace {
TEST(PythonRandom, DrawsTheDoublesOfPython) {
  {
    PythonRandom random(0ULL);
    EXPECT_EQ(random.random(), 0.8444218515250481);
    EXPECT_EQ(random.random(), 0.7579544029403025);
    for (int i = 2; i < 1499; ++i) random.random();
    EXPECT_EQ(random.random(), 0.3592139778487352);
    EXPECT_EQ(random.uniform(1.5, 3), 2.1013170827253607);
  }
  {
    PythonRandom random(2ULL);
    EXPECT_EQ(random.random(), 0.9560342718892494);
    EXPECT_EQ(random.random(), 0.9478274870593494);
    for (int i = 2; i < 1499; ++i) random.random();
    EXPECT_EQ(random.random(), 0.16218092001198403);
    EXPECT_EQ(random.uniform(1.5, 3), 2.4679739551527753);
  }
  {
    PythonRandom random(12345678901234567890ULL);
    EXPECT_EQ(random.random(), 0.5120180983871961);
    EXPECT_EQ(random.random(), 0.9318805526703359);
    for (int i = 2; i < 1499; ++i) random.random();
    EXPECT_EQ(random.random(), 0.13807756705124474);
    EXPECT_EQ(random.uniform(1.5, 3), 2.035923373114982);
  }
}

TEST(PythonRandom, DrawsTheIntegersOfPython) {
  PythonRandom random(5);
  EXPECT_EQ(random.below(26ULL), 19ULL);
  EXPECT_EQ(random.below(26ULL), 8ULL);
  EXPECT_EQ(random.below(1ULL), 0ULL);
  EXPECT_EQ(random.below(2ULL), 0ULL);
  EXPECT_EQ(random.below(3ULL), 1ULL);
  EXPECT_EQ(random.below(1000000ULL), 813651ULL);
  EXPECT_EQ(random.below(1000000000000ULL), 274634625908ULL);
}

TEST(PythonRandom, ShufflesAndSamplesAsPythonDoes) {
  PythonRandom random(5);
  std::vector<std::string> types{"v100", "p100", "k80"};
  random.shuffle(types);
  EXPECT_EQ(types, (std::vector<std::string>{"v100", "p100", "k80"}));
  random.shuffle(types);
  EXPECT_EQ(types, (std::vector<std::string>{"v100", "p100", "k80"}));
  random.shuffle(types);
  EXPECT_EQ(types, (std::vector<std::string>{"p100", "v100", "k80"}));
  using Two = std::pair<size_t, size_t>;
  EXPECT_EQ(random.two_of(2), Two(1, 0));
  EXPECT_EQ(random.two_of(3), Two(2, 0));
  EXPECT_EQ(random.two_of(21), Two(5, 3));
  EXPECT_EQ(random.two_of(22), Two(11, 15));
  EXPECT_EQ(random.two_of(22), Two(7, 12));
  EXPECT_EQ(random.two_of(500), Two(278, 52));
  EXPECT_EQ(random.two_of(5), Two(4, 1));
  EXPECT_EQ(random.two_of(5), Two(0, 1));
}

}  // namespace
}  // namespace trireme::fleet
