// Whom ranks let read their memory: the nearest process from which all of them descend.
#include "trireme/comm/kernel_reach.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/child.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(CommonAncestor, IsTheNearestOne) {
  EXPECT_EQ(common_ancestor({{30, 20, 10, 1}, {31, 20, 10, 1}}), 20) << "a launcher's children";
  EXPECT_EQ(common_ancestor({{30, 21, 10, 1}, {31, 22, 10, 1}, {32, 10, 1}}), 10) << "some have a shell between";
  EXPECT_EQ(common_ancestor({{30, 20, 1}, {31, 30, 20, 1}}), 30) << "one is the other's parent";
  EXPECT_EQ(common_ancestor({{30, 20, 1}, {31, 21, 1}}), 1);
  EXPECT_EQ(common_ancestor({{30, 20}, {31, 21}}), 0) << "of different containers";
  EXPECT_EQ(common_ancestor({{30, 20}, {}}), 0);
  EXPECT_EQ(common_ancestor({}), 0);
}

const Role waits("waits", [] {
  ::pause();
  return 0;
});

TEST(LineOfDescent, BeginsWithTheProcessAndItsParent) {
  const Child one("waits"), other("waits");
  const auto line = line_of_descent(one.pid());
  ASSERT_GE(line.size(), 2U);
  EXPECT_EQ(line[0], one.pid());
  EXPECT_EQ(line[1], getpid());
  EXPECT_EQ(common_ancestor({line, line_of_descent(other.pid())}), getpid());
  EXPECT_THAT(line_of_descent(0), SizeIs(0));
  EXPECT_THAT(line_of_descent(INT32_MAX), ElementsAre(INT32_MAX)) << "there is no such process";
}

}  // namespace
}  // namespace trireme
