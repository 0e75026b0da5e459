// Who does what, and where the layers are cut.
#include "trireme/spec/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::ElementsAre;

LayerTable table_of(const std::vector<double>& work) {
  LayerTable table;
  for (const double one : work) {
    LayerSpec layer;
    layer.forward_flops = one;
    layer.backward_flops = 2 * one;
    table.layers.push_back(layer);
  }
  return table;
}

Mesh straight(int stages) { return make_mesh({.pipe = stages}, stages); }

TEST(Mesh, ReplicasOfAStageAreNeighbours) {
  const Mesh mesh = make_mesh({.pipe = 3}, 6);
  EXPECT_EQ(mesh.stages, 3);
  EXPECT_EQ(mesh.replicas(), 2);
  EXPECT_EQ(mesh.ranks(), 6);
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(mesh.rank_of(mesh.stage_of(rank), mesh.replica_of(rank)), rank);
  }
  EXPECT_EQ(mesh.stage_of(3), 1);
  EXPECT_EQ(mesh.replica_of(3), 1);
}

TEST(Mesh, RefusesRanksThatItCannotUse) {
  EXPECT_THROW(make_mesh({.pipe = 2}, 3), Error);
  EXPECT_THROW(make_mesh({.pipe = 4}, 2), Error);
  EXPECT_THROW(make_mesh({.pipe = 2, .data = 2}, 2), Error);
  EXPECT_EQ(make_mesh({.pipe = 2, .data = 2}, 4).replicas(), 2);
}

TEST(Mesh, SaysHowManyRanksItCouldUse) {
  const auto refusal = [](const ParallelConfig& parallel, int ranks) {
    try {
      make_mesh(parallel, ranks);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.pipe = 2}, 5),
            "5 ranks cannot be laid out as parallel.pipe = 2: start 4 or 6 ranks, or change the layout");
  EXPECT_EQ(refusal({.pipe = 4}, 3),
            "3 ranks cannot be laid out as parallel.pipe = 4: start 4 ranks, or change the layout");
  EXPECT_EQ(refusal({.pipe = 2, .data = 2}, 5),
            "5 ranks cannot be laid out as parallel.pipe = 2 times parallel.data = 2: start 4 ranks, or change the layout");
}

TEST(Mesh, StagesMayHaveDifferentNumbersOfReplicas) {
  const Mesh mesh = make_mesh({.pipe = 3, .replicas = {3, 1, 2}}, 6);
  EXPECT_FALSE(mesh.even());
  EXPECT_EQ(mesh.ranks(), 6);
  std::vector<int> stages;
  for (int rank = 0; rank < 6; ++rank) {
    stages.push_back(mesh.stage_of(rank));
    EXPECT_EQ(mesh.rank_of(mesh.stage_of(rank), mesh.replica_of(rank)), rank);
  }
  EXPECT_THAT(stages, ElementsAre(0, 0, 0, 1, 2, 2));
  EXPECT_TRUE(make_mesh({.pipe = 2, .replicas = {2, 2}}, 4).even());
  EXPECT_THROW(make_mesh({.pipe = 2, .replicas = {3, 1}}, 5), Error);
  // Seven microbatches: replica 0 of 3 has three of them.
  const auto place = place_of(mesh, 0, 0, 7);
  EXPECT_EQ(place.microbatches, 3);
  EXPECT_EQ(place_of(mesh, 0, 1, 7).microbatches, 2);
  EXPECT_EQ(place_of(mesh, 1, 0, 7).microbatches, 7);
}

TEST(Mesh, PartsLieInTurnOrAsAV) {
  const Mesh turn = make_mesh({.pipe = 3, .schedule = ScheduleKind::interleaved}, 3);
  EXPECT_EQ(turn.parts(), 6);
  const Mesh vee = make_mesh({.pipe = 3, .schedule = ScheduleKind::zero_bubble_v}, 3);
  std::vector<int> in_turn, as_v;
  for (int part = 0; part < 6; ++part) {
    in_turn.push_back(turn.stage_of_part(part));
    as_v.push_back(vee.stage_of_part(part));
    for (const auto& mesh : {turn, vee})
      EXPECT_EQ(mesh.part_of(mesh.stage_of_part(part), mesh.chunk_of_part(part)), part);
  }
  EXPECT_THAT(in_turn, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(as_v, ElementsAre(0, 1, 2, 2, 1, 0));
}

TEST(StageBegins, GivesAStageWithMoreReplicasMoreWork) {
  const Mesh mesh = make_mesh({.pipe = 2, .replicas = {3, 1}}, 4);
  EXPECT_THAT(part_begins(table_of({1, 1, 1, 1}), {.pipe = 2}, mesh), ElementsAre(0, 3));
}

TEST(StageBegins, MakesTheHeaviestStageAsLightAsItCanBe) {
  EXPECT_THAT(part_begins(table_of({1, 1, 1, 1}), {.pipe = 2}, straight(2)), ElementsAre(0, 2));
  EXPECT_THAT(part_begins(table_of({0, 5, 1, 1, 1, 2}), {.pipe = 2}, straight(2)), ElementsAre(0, 2));
  EXPECT_THAT(part_begins(table_of({9, 1, 1, 1}), {.pipe = 3}, straight(3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(part_begins(table_of({1, 2, 3}), {.pipe = 3}, straight(3)), ElementsAre(0, 1, 2));
  EXPECT_THAT(part_begins(table_of({1, 2, 3}), {.pipe = 1}, straight(1)), ElementsAre(0));
}

TEST(StageBegins, TakesGivenCutsAndRefusesImpossibleOnes) {
  const auto table = table_of({1, 1, 1, 1});
  EXPECT_THAT(part_begins(table, {.pipe = 3, .cuts = {1, 3}}, straight(3)), ElementsAre(0, 1, 3));
  EXPECT_THROW(part_begins(table, {.pipe = 3, .cuts = {3, 1}}, straight(3)), Error);
  EXPECT_THROW(part_begins(table, {.pipe = 3, .cuts = {2, 2}}, straight(3)), Error);
  EXPECT_THROW(part_begins(table, {.pipe = 2, .cuts = {4}}, straight(2)), Error);
  EXPECT_THROW(part_begins(table, {.pipe = 5}, straight(5)), Error);
}

}  // namespace
}  // namespace trireme
