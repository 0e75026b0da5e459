#include "trireme/spec/dealing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Case {
  std::vector<int> replicas;
  int64_t samples, most;
  std::vector<double> weights{};
  bool alike = false;
};

Mesh mesh_of(const std::vector<int>& replicas) {
  Mesh mesh;
  mesh.stages = static_cast<int>(replicas.size());
  mesh.replicas_by_stage = replicas;
  return mesh;
}

class DealingTest : public testing::TestWithParam<Case> {
 protected:
  Mesh mesh_ = mesh_of(GetParam().replicas);
  Dealing dealing_{mesh_, GetParam().samples, {GetParam().most, GetParam().weights, GetParam().alike}};
};

TEST_P(DealingTest, EverySamplePassesEveryStageOnce) {
  for (int stage = 0; stage < mesh_.stages; ++stage) {
    std::vector<int> seen(static_cast<size_t>(GetParam().samples), 0);
    for (int replica = 0; replica < mesh_.replicas(stage); ++replica) {
      const int rank = mesh_.rank_of(stage, replica);
      int64_t samples = 0;
      for (const auto& piece : dealing_.pieces(rank)) {
        EXPECT_LE(piece.count, dealing_.largest());
        samples += piece.count;
        for (int64_t i = 0; i < piece.count; ++i) ++seen[static_cast<size_t>(piece.first + i)];
      }
      EXPECT_EQ(samples, dealing_.samples(rank));
    }
    EXPECT_THAT(seen, testing::Each(1)) << "stage " << stage;
  }
}

TEST_P(DealingTest, AllStagesKnowAMicrobatchByItsNumber) {
  for (int rank = 0; rank < mesh_.ranks(); ++rank) {
    const auto pieces = dealing_.pieces(rank);
    EXPECT_EQ(dealing_.place(rank).microbatches, std::ssize(pieces));
    for (int own = 0; own < std::ssize(pieces); ++own) {
      const int number = dealing_.number_of(rank, own);
      EXPECT_LT(number, dealing_.numbers(rank));
      EXPECT_EQ(dealing_.own_of(rank, number), own);
      for (int stage = 0; stage < mesh_.stages; ++stage) {
        const int holder = dealing_.holder(rank, own, stage);
        EXPECT_EQ(mesh_.stage_of(holder), stage);
        EXPECT_EQ(dealing_.pieces(holder)[static_cast<size_t>(dealing_.own_of(holder, number))],
                  pieces[static_cast<size_t>(own)]);
        EXPECT_EQ(dealing_.holder(holder, dealing_.own_of(holder, number), mesh_.stage_of(rank)), rank);
      }
    }
  }
}

TEST_P(DealingTest, NumbersOfAllReplicasAreThere) {
  const auto all = dealing_.all_numbers();
  for (int rank = 0; rank < mesh_.ranks(); ++rank) EXPECT_THAT(all, testing::Contains(dealing_.numbers(rank)));
  EXPECT_TRUE(std::is_sorted(all.rbegin(), all.rend()));
}

INSTANTIATE_TEST_SUITE_P(Meshes, DealingTest,
                         testing::Values(Case{{1}, 7, 0}, Case{{3}, 8, 0}, Case{{3, 3}, 8, 2}, Case{{2, 2}, 9, 4},
                                         Case{{2, 2, 2}, 12, 2, {3, 1}}, Case{{3}, 10, 2, {4, 1, 1}, true},
                                         Case{{3, 1}, 8, 2}, Case{{1, 4, 2}, 16, 3}, Case{{2, 3}, 7, 0}));

TEST(Dealing, ReplicasMayHaveMoreAndLess) {
  const Dealing dealing(mesh_of({2, 2}), 12, {2, {5, 1}});
  EXPECT_THAT(dealing.all_numbers(), ElementsAre(5, 1));
  EXPECT_EQ(dealing.numbers(0), 5);
  EXPECT_EQ(dealing.numbers(3), 1);
  const Dealing alike(mesh_of({2, 2}), 12, {2, {5, 1}, /*alike=*/true});
  EXPECT_THAT(alike.all_numbers(), ElementsAre(5));
  EXPECT_EQ(alike.pieces(1).back().count, 0);
}

TEST(Dealing, RefusesWhatCannotBeDealt) {
  RunConfig config;
  config.train.batch = 4;
  const auto refusal = [&](const Mesh& mesh, int64_t samples) -> std::string {
    try {
      check_dealing(config, mesh, samples);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal(mesh_of({4}), 4), "");
  EXPECT_THAT(refusal(mesh_of({5}), 100), HasSubstr("5 ranks cannot share train.batch = 4"));
  EXPECT_THAT(refusal(mesh_of({4}), 3), HasSubstr("the data holds 3 training samples, fewer than the 4 ranks"));
  config.train.microbatch = 2;
  EXPECT_THAT(refusal(mesh_of({1, 3}), 100), HasSubstr("the 3 replicas of stage 1 cannot share the 2 microbatches"));
}

}  // namespace
}  // namespace trireme
