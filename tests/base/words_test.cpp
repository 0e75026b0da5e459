#include "trireme/base/words.h"

#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

TEST(WordsTest, OneIsOneAndOthersAreMany) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
  EXPECT_EQ(counted(1, "process", "processes"), "1 process");
  EXPECT_EQ(counted(3, "process", "processes"), "3 processes");
  EXPECT_EQ(plural(1, "belongs", "belong"), "belongs");
}

TEST(WordsTest, NanHasNoSign) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(fixed(nan, 4), "nan");
  EXPECT_EQ(fixed(-nan, 4), "nan");
  EXPECT_EQ(fixed(-1.25, 1), "-1.2");
  EXPECT_EQ(fixed(-std::numeric_limits<double>::infinity(), 2), "-inf");
}

}  // namespace
}  // namespace trireme
