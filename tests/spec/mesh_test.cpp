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

TEST(Mesh, ReplicasOfAStageAreNeighbours) {
  const Mesh mesh = make_mesh({.pipe = 3}, 6);
  EXPECT_EQ(mesh.stages, 3);
  EXPECT_EQ(mesh.replicas, 2);
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
  EXPECT_EQ(make_mesh({.pipe = 2, .data = 2}, 4).replicas, 2);
}

TEST(StageBegins, MakesTheHeaviestStageAsLightAsItCanBe) {
  EXPECT_THAT(stage_begins(table_of({1, 1, 1, 1}), {.pipe = 2}), ElementsAre(0, 2));
  EXPECT_THAT(stage_begins(table_of({0, 5, 1, 1, 1, 2}), {.pipe = 2}), ElementsAre(0, 2));
  EXPECT_THAT(stage_begins(table_of({9, 1, 1, 1}), {.pipe = 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(stage_begins(table_of({1, 2, 3}), {.pipe = 3}), ElementsAre(0, 1, 2));
  EXPECT_THAT(stage_begins(table_of({1, 2, 3}), {.pipe = 1}), ElementsAre(0));
}

TEST(StageBegins, TakesGivenCutsAndRefusesImpossibleOnes) {
  const auto table = table_of({1, 1, 1, 1});
  EXPECT_THAT(stage_begins(table, {.pipe = 3, .cuts = {1, 3}}), ElementsAre(0, 1, 3));
  EXPECT_THROW(stage_begins(table, {.pipe = 3, .cuts = {3, 1}}), Error);
  EXPECT_THROW(stage_begins(table, {.pipe = 3, .cuts = {2, 2}}), Error);
  EXPECT_THROW(stage_begins(table, {.pipe = 2, .cuts = {4}}), Error);
  EXPECT_THROW(stage_begins(table, {.pipe = 5}), Error);
}

}  // namespace
}  // namespace trireme
