#include "trireme/spec/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Layers of equal work.
LayerTable equal_layers(size_t count) {
  LayerTable table;
  table.layers.resize(count);
  for (auto& layer : table.layers) layer.forward_flops = 1;
  return table;
}

TEST(Plan, IsMadeOfTheConfigurationTheModelAndTheRanks) {
  RunConfig config;
  config.train.batch = 12;
  config.train.microbatch = 2;
  config.parallel.pipe = 2;
  config.parallel.schedule = ScheduleKind::zero_bubble_v;
  const auto plan = make_plan(config, equal_layers(8), {.ranks = 4});
  EXPECT_EQ(plan.mesh.replicas(), 2);
  EXPECT_EQ(plan.mesh.parts(), 4);
  EXPECT_THAT(plan.begins, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(plan.layers_of(3, 8).first, 6u);
  EXPECT_EQ(plan.layers_of(3, 8).last, 8u);
  EXPECT_EQ(plan.dealing.pieces(3).size(), 3u);
  EXPECT_STREQ(plan.schedule_of(3)->name(), "zero-bubble-v");
  EXPECT_TRUE(plan.drains());
}

TEST(Plan, KnowsHowItsPipelineFlows) {
  RunConfig config;
  config.train.batch = 8;
  config.train.microbatch = 1;
  config.parallel.pipe = 3;
  config.parallel.schedule = ScheduleKind::pipedream;
  const auto plan = make_plan(config, equal_layers(3), {.ranks = 3});
  EXPECT_FALSE(plan.drains());
  EXPECT_EQ(plan.flow_of(0).ahead(), 2);
  EXPECT_EQ(plan.flow_of(2).ahead(), 0);
  EXPECT_EQ(plan.flow_of(1).per_step(), 8);
}

TEST(Plan, ReadsATableOfActionsOnce) {
  const TemporaryFolder folder;
  const auto file = folder / "table.csv";
  std::ofstream(file) << "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  RunConfig config;
  config.train.batch = 2;
  config.train.microbatch = 1;
  config.parallel.pipe = 2;
  config.parallel.schedule = ScheduleKind::file;
  config.parallel.options.file = file.string();
  const auto plan = make_plan(config, equal_layers(2), {.ranks = 2});
  std::filesystem::remove(file);
  EXPECT_EQ(plan.schedule_of(1)->plan()->at(1).kind, TaskKind::backward);
}

TEST(Plan, RefusesWhatTheRanksAndTheDataCannotDo) {
  RunConfig config;
  config.train.batch = 4;
  config.parallel.pipe = 2;
  const auto refusal = [&](const Facts& facts, size_t layers) -> std::string {
    try {
      make_plan(config, equal_layers(layers), facts);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal({.ranks = 4}, 2), "");
  EXPECT_THAT(refusal({.ranks = 3}, 2), HasSubstr("3 ranks cannot be laid out as parallel.pipe = 2"));
  EXPECT_THAT(refusal({.ranks = 2}, 1), HasSubstr("the model has 1 layer"));
  EXPECT_THAT(refusal({.ranks = 10}, 2), HasSubstr("5 ranks cannot share train.batch = 4"));
  EXPECT_THAT(refusal({.ranks = 4, .training_samples = 1}, 2), HasSubstr("fewer than the 2 ranks"));
}

TEST(Schedules, AreRowsWithNamesOfTheirOwn) {
  for (const auto& row : all_schedules()) {
    EXPECT_EQ(&row_of(row.kind), &row);
    if (row.reads_file()) continue;
    EXPECT_STREQ(row.make(row.name, {0, 2, 4, row.layout ? row.layout({}).chunks : 1, row.layout && row.layout({}).vee},
                          {})->name(),
                 row.name);
  }
}

}  // namespace
}  // namespace trireme
