#include "trireme/bench/shared.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Shared, FairPartIsOfAllThreadsThatWantToRun) {
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 0), 1);
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 1), 2.0 / 3);
  EXPECT_DOUBLE_EQ(fair_part(2, 2, 2), 0.5);
  EXPECT_DOUBLE_EQ(fair_part(16, 8, 4), 1);  // cores are left
  EXPECT_DOUBLE_EQ(fair_part(16, 16, 16), 0.5);
}

TEST(Shared, HasTwoCases) {
  EXPECT_TRUE(is_shared_case("shared"));
  EXPECT_TRUE(is_shared_case("shared-tiny"));
  EXPECT_FALSE(is_shared_case("mlp"));
}

}  // namespace
}  // namespace trireme
