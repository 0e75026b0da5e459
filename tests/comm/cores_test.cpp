// A rank's part of its host's cores.
#include "trireme/comm/cores.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr double no_quota = 1e9;

CoreSet cores(size_t begin, size_t end) {
  CoreSet set;
  for (size_t i = begin; i < end; ++i) set.set(i);
  return set;
}

TEST(Cores, RanksThatMayUseAllShareThem) {
  const std::vector<CoreSet> four(4, cores(0, 16));
  EXPECT_EQ(own_part(four[0], four, no_quota), 4);
  EXPECT_EQ(own_part(cores(0, 2), std::vector<CoreSet>(4, cores(0, 2)), no_quota), 0.5);
}

TEST(Cores, RanksBoundToTheirOwnKeepThem) {
  const std::vector<CoreSet> bound{cores(0, 4), cores(4, 8), cores(8, 12), cores(12, 16)};
  for (const auto& one : bound) EXPECT_EQ(own_part(one, bound, no_quota), 4);
  // Two to a socket.
  const std::vector<CoreSet> sockets{cores(0, 8), cores(0, 8), cores(8, 16), cores(8, 16)};
  EXPECT_EQ(own_part(sockets[2], sockets, no_quota), 4);
}

TEST(Cores, AQuotaIsOfAllTogether) {
  const std::vector<CoreSet> bound{cores(0, 4), cores(4, 8)};
  EXPECT_EQ(own_part(bound[0], bound, 4), 2);
  EXPECT_EQ(own_part(bound[0], bound, 16), 4);
}

TEST(Cores, OfThisProcess) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(own_cores({0}), usable_cores());
  EXPECT_EQ(own_cores({0, 0}), usable_cores() / 2.0);
}

}  // namespace
}  // namespace trireme
