// Collectives among ranks that are threads: against an explicit reference, on 1 to 8 ranks.
#include "trireme/comm/shared_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "tests/comm/collective_checks.h"
#include "trireme/comm/world.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr int64_t counts[] = {0, 1, 7, 1000, 70'000, 1'000'003};

// 64 KiB and more lie on other paths than small ones; so does memory from allocate().
at::Tensor allocated(Communicator& communicator, at::ScalarType dtype, int64_t count) {
  return communicator.allocate(count * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype);
}

class SharedTransportTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SharedTransportTest, testing::Values(1, 2, 3, 4, 8), testing::PrintToStringParamName());

TEST_P(SharedTransportTest, AllReduceGivesTheBitsOfTheReference) {
  const int ranks = GetParam();
  for (auto dtype : reducible_types) {
    for (auto count : counts) {
      // Eight ranks on a small machine: one large case tells as much as six.
      if (ranks == 8 && count > 100'000 && dtype != at::kFloat) continue;
      const Example example(dtype, count, ranks);
      World::run_threads(ranks, [&](World& world) {
        auto& communicator = world.communicator();
        check_all_reduce(communicator, example, at::empty({count}, dtype), Promise::bits);
        check_all_reduce(communicator, example, allocated(communicator, dtype, count), Promise::bits);
      });
    }
  }
}

TEST_P(SharedTransportTest, BroadcastGivesWhatTheRootHas) {
  World::run_threads(GetParam(), [&](World& world) {
    auto& communicator = world.communicator();
    for (auto count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{70'000}, int64_t{200'000}}) {
      check_broadcast(communicator, at::kFloat, count, at::empty({count}, at::kFloat));
      check_broadcast(communicator, at::kLong, count, allocated(communicator, at::kLong, count));
    }
  });
}

TEST_P(SharedTransportTest, PartsAreReducedScatteredAndGathered) {
  World::run_threads(GetParam(), [&](World& world) {
    auto& communicator = world.communicator();
    for (auto count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{200'000}}) {
      check_parts(communicator, at::kFloat, count, at::empty({count}, at::kFloat));
      check_parts(communicator, at::kBFloat16, count, allocated(communicator, at::kBFloat16, count));
    }
  });
}

TEST_P(SharedTransportTest, AllToAllTakesWhatEachGave) {
  World::run_threads(GetParam(), [&](World& world) {
    for (auto most : {int64_t{0}, int64_t{1}, int64_t{9}, int64_t{50'000}}) {
      check_all_to_all(world.communicator(), at::kFloat, most);
      check_all_to_all(world.communicator(), at::kByte, most);
    }
  });
}

TEST_P(SharedTransportTest, AllGatherGivesEverybodysInOrderOfTheRanks) {
  World::run_threads(GetParam(), [&](World& world) {
    for (auto count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{70'000}, int64_t{200'000}}) {
      check_all_gather(world.communicator(), at::kFloat, count);
      check_all_gather(world.communicator(), at::kHalf, count);
    }
  });
}

TEST_P(SharedTransportTest, TypesThatAreOnlyMovedMayBeAny) {
  World::run_threads(GetParam(), [&](World& world) {
    auto& communicator = world.communicator();
    auto flags = at::full({3}, communicator.rank() == 0, at::kBool);
    communicator.wait(communicator.broadcast(flags, 0, "flags"));
    expect_equal(communicator, flags, at::full({3}, true, at::kBool), "broadcast flags");
    auto bytes = at::empty({communicator.size()}, at::kByte);
    communicator.wait(communicator.all_gather(at::full({1}, communicator.rank(), at::kByte), bytes, "bytes"));
    expect_equal(communicator, bytes, at::arange(communicator.size(), at::kByte), "gathered bytes");
  });
}

TEST_P(SharedTransportTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> came{0};
  World::run_threads(GetParam(), [&](World& world) {
    auto& communicator = world.communicator();
    for (int round = 1; round <= 200; ++round) {
      came.fetch_add(1);
      communicator.wait(communicator.barrier("round"));
      const int seen = came.load();
      if (seen < round * world.size()) fail("rank {} left barrier {} after {} arrivals", world.rank(), round, seen);
    }
  });
}

TEST_P(SharedTransportTest, ARandomMixOfTwoThousand) {
  World::run_threads(GetParam(), [&](World& world) {
    auto arena = world.communicator().allocate(8 << 20);
    check_random_mix(world.communicator(), arena, 2000, 12345);
  });
}

TEST(SharedTransport, KnowsItsNameAndPlace) {
  World::run_threads(3, [](World& world) {
    EXPECT_STREQ(world.communicator().transport_name(), "threads");
    EXPECT_EQ(world.rank(), world.local_rank());
    EXPECT_EQ(world.size(), 3);
    EXPECT_TRUE(world.ranks_are_threads());
  });
  const auto alone = World::join(Surroundings{}, TransportKind::automatic);
  EXPECT_STREQ(alone->communicator().transport_name(), "none");
  EXPECT_EQ(alone->size(), 1);
}

TEST(SharedTransport, AWorldOfOneGivesBackWhatItGets) {
  const auto alone = World::join(Surroundings{}, TransportKind::automatic);
  auto& communicator = alone->communicator();
  for (auto count : {int64_t{0}, int64_t{7}, int64_t{70'000}}) {
    const Example example(at::kFloat, count, 1);
    check_all_reduce(communicator, example, at::empty({count}), Promise::bits);
    check_broadcast(communicator, at::kDouble, count, communicator.allocate(8 * count).view(at::kDouble));
    check_all_gather(communicator, at::kInt, count);
    check_parts(communicator, at::kFloat, count, at::empty({count}));
    check_all_to_all(communicator, at::kFloat, count);
  }
  check_random_mix(communicator, at::Tensor(at::zeros({2 << 20}, at::kByte)), 200, 5);
}

TEST(SharedTransport, AllocatedMemoryIsZeroed) {
  World::run_threads(2, [](World& world) {
    EXPECT_TRUE(at::equal(world.communicator().allocate(1000), at::zeros({1000}, at::kByte)));
  });
}

TEST(SharedTransport, RefusesTypesThatItCannotReduce) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    try {
      communicator.wait(communicator.all_reduce(at::ones({4}, at::kBool), ReduceOp::sum, "flags"));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"flags\": tensors of type Bool cannot be reduced"));
    }
  });
}

TEST(SharedTransport, EveryRankHearsOfADisagreement) {
  for (const auto& disagreement : disagreements()) {
    for (int ranks : {2, 3}) {
      World::run_threads(ranks, [&](World& world) { check_disagreement(world.communicator(), disagreement); });
    }
  }
}

TEST(SharedTransport, AllocatingIsPartOfTheAgreedOrder) {
  World::run_threads(2, [](World& world) {
    auto& communicator = world.communicator();
    try {
      if (world.rank() == 0) {
        communicator.allocate(100);
      } else {
        communicator.wait(communicator.barrier("here"));
      }
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 called operation 0: allocate() \"allocate\", rank 1 called operation "
                                          "0: barrier() \"here\""));
    }
  });
}

TEST(SharedTransport, NarrowIntegersAreAddedUpWideAndStayAtTheirBounds) {
  World::run_threads(3, [](World& world) {
    auto& communicator = world.communicator();
    const auto sum = [&](double one, double two, double three, at::ScalarType dtype) {
      const double given[] = {one, two, three};
      auto values = at::full({1000}, given[world.rank()], dtype);  // the vectorised part and the rest
      communicator.wait(communicator.all_reduce(values, ReduceOp::sum, "sum"));
      EXPECT_TRUE(at::equal(values, values[0].expand_as(values)));
      return values[0].item<double>();
    };
    EXPECT_EQ(sum(100, 100, -100, at::kChar), 100);
    EXPECT_EQ(sum(100, 100, 100, at::kChar), 127);
    EXPECT_EQ(sum(-100, -100, 1, at::kChar), -128);
    EXPECT_EQ(sum(200, 200, 1, at::kByte), 255);
    EXPECT_EQ(sum(30'000, 30'000, -30'000, at::kShort), 30'000);
    EXPECT_EQ(sum(-30'000, -30'000, 0, at::kShort), -32'768);
  });
}

TEST(SharedTransport, WhatIsNotANumberWinsWhicheverRankItComesFrom) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (int from = 0; from < 3; ++from) {
    World::run_threads(3, [&](World& world) {
      for (const auto op : {ReduceOp::max, ReduceOp::min}) {
        auto values = at::tensor({1.0, world.rank() == from ? nan : 2.0, static_cast<double>(world.rank())});
        world.communicator().wait(world.communicator().all_reduce(values, op, "values"));
        EXPECT_EQ(values[0].item<double>(), 1);
        EXPECT_TRUE(std::isnan(values[1].item<double>())) << "from rank " << from;
        EXPECT_EQ(values[2].item<double>(), op == ReduceOp::max ? 2 : 0);
      }
    });
  }
}

TEST(SharedTransport, ARankThatThrowsEndsTheOthers) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ended{0};
    try {
      World::run_threads(3, [&](World& world) {
        auto& communicator = world.communicator();
        communicator.wait(communicator.barrier("start"));
        if (world.rank() == 1) fail("out of memory");
        try {
          communicator.wait(communicator.all_reduce(at::ones({1000}), ReduceOp::sum, "gradients"));
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("\"gradients\": another rank ended while this one waited for it"));
          ++ended;
          throw;
        }
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "out of memory") << "the first error, not a consequence";
    }
    EXPECT_EQ(ended.load(), 2);
  }
}

TEST(SharedTransport, MemoryOfARankThatLeavesEarlyStaysWhileOthersUseIt) {
  // Rank 0 throws while its large tensor is being reduced where it lies: sanitizers see whether it is still there.
  for (int round = 0; round < 30; ++round) {
    EXPECT_THROW(World::run_threads(3,
                                    [&](World& world) {
                                      auto& communicator = world.communicator();
                                      const auto ticket =
                                          communicator.all_reduce(at::ones({400'000}), ReduceOp::sum, "gradients");
                                      std::this_thread::sleep_for(std::chrono::microseconds(50 * round));
                                      if (world.rank() == 0) fail("gone");
                                      communicator.wait(ticket);
                                    }),
                 Error);
  }
}

}  // namespace
}  // namespace trireme
