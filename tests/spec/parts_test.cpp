// What crosses the borders of parts, who shares parameters, and how gradients lie in buckets.
#include "trireme/spec/parts.h"

#include <gtest/gtest.h>

#include "trireme/spec/buckets.h"
#include "trireme/spec/models/models.h"

namespace trireme {
namespace {

TEST(Crossings, SkipsPassOverParts) {
  const std::vector<int64_t> begins{0, 2, 4, 6};
  const std::vector<Skip> skips{{0, 1}, {1, 5}, {3, 7}};  // within a part, over one, over one
  EXPECT_EQ(crossings_of(0, begins, skips).incoming, std::vector<Crossing>());
  EXPECT_EQ(crossings_of(0, begins, skips).outgoing, (std::vector<Crossing>{{0, 1, 0}, {0, 2, 2}}));
  EXPECT_EQ(crossings_of(2, begins, skips).incoming, (std::vector<Crossing>{{1, 2, 0}, {0, 2, 2}}));
  EXPECT_EQ(crossings_of(2, begins, skips).outgoing, (std::vector<Crossing>{{2, 3, 0}}));
  EXPECT_EQ(crossings_of(3, begins, skips).incoming, (std::vector<Crossing>{{2, 3, 0}, {1, 3, 3}}));
}

Plan plan_of(const LayerTable& table, int stages, ScheduleKind schedule = ScheduleKind::gpipe) {
  RunConfig config;
  config.parallel.pipe = stages;
  config.parallel.schedule = schedule;
  return make_plan(config, table, {stages});
}

TEST(Parts, ShareATiedTable) {
  ModelConfig model;
  const auto table = model_table(model, 50, 4);
  const auto plan = plan_of(table, 3);
  EXPECT_EQ(find_ties(plan, table), (std::vector<Tie>{{{0, 2}}}));
  const auto first = held_parameters(plan, table, 0), last = held_parameters(plan, table, 2);
  EXPECT_EQ(table.weights[first.front().number].name, "wte.weight");
  EXPECT_EQ(first.front().tie, 0);
  EXPECT_TRUE(first.front().owned);
  EXPECT_EQ(first.front().uses, 1);
  EXPECT_EQ(table.weights[last.back().number].name, "wte.weight");
  EXPECT_EQ(last.back().tie, 0);
  EXPECT_FALSE(last.back().owned);
  // As a V the first rank has both ends of the model: nobody shares, and a microbatch writes the gradient twice.
  const auto vee = plan_of(table, 2, ScheduleKind::zero_bubble_v);
  EXPECT_TRUE(find_ties(vee, table).empty());
  EXPECT_EQ(held_parameters(vee, table, 0).front().uses, 2);
  EXPECT_EQ(held_parameters(vee, table, 0).front().tie, -1);
}

TEST(Buckets, LieInTheOrderOfGradients) {
  //                        elements, trained, decays, tie, owned
  const BucketItem items[]{{100, true, true},        {20, true, false},       {30, false, true},
                           {16, true, true, 0, false}, {17, true, false, -1}, {300, true, true}};
  const auto buckets = lay_out_buckets(items, 200);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].elements, 304);  // larger than any bucket, so alone in its own
  EXPECT_EQ(buckets[1].elements, 32 + 32 + 112);
  EXPECT_EQ(buckets[1].decaying, 112);
  ASSERT_EQ(buckets[1].places.size(), 3u);
  EXPECT_EQ(buckets[1].places[0].item, 0u);  // which decays
  EXPECT_EQ(buckets[1].places[1].item, 4u);
  EXPECT_EQ(buckets[1].places[1].offset, 112);
  EXPECT_EQ(buckets[1].places[2].item, 1u);
  EXPECT_EQ(buckets[2].tie, 0);
  EXPECT_FALSE(buckets[2].owned);
}

TEST(Buckets, HaveRootsWithEquallyMuchToDo) {
  const BucketShape shapes[]{{100}, {60}, {30}, {80, 0, 0}, {20, 0, 0}};
  const auto roots = bucket_roots(shapes, [](int tie) { return tie < 0 ? 2 : 3; });
  EXPECT_EQ(roots, (std::vector<int>{0, 1, 1, 0, 1}));
  EXPECT_EQ(spread_order(shapes), (std::vector<size_t>{4, 3, 2, 1, 0}));
}

}  // namespace
}  // namespace trireme
