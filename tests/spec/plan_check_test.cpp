#include "trireme/spec/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/sync_settings.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

// How a plan is refused, of a small GPT.
std::string refusal(const Words& words, Facts facts = {.ranks = 2}) {
  Words all{"model.layers=4", "model.width=8", "model.heads=2", "model.context=4", "model.vocab=30",
            "data.kind=synthetic", "train.batch=8", "train.microbatch=2"};
  all.insert(all.end(), words.begin(), words.end());
  try {
    const auto config = load_config({}, all);
    make_plan(config, model_table(config.model, 30), facts);
    return "(accepted)";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PlanCheck, PipelinesThatNeverDrainHaveNoSharedTables) {
  const Words pipedream{"parallel.pipe=2", "parallel.schedule=pipedream"};
  EXPECT_THAT(refusal(pipedream),
              HasSubstr("parallel.schedule = pipedream: stages would change the parameters that they share"));
  EXPECT_EQ(refusal({"parallel.pipe=2", "parallel.schedule=pipedream", "model.untied=true"}), "(accepted)");
  EXPECT_EQ(refusal({"parallel.pipe=2", "parallel.schedule=pipedream-2bw"}), "(accepted)");
}

TEST(PlanCheck, PipelinesThatNeverDrainNeedTheirMicrobatches) {
  EXPECT_EQ(refusal({"parallel.pipe=4", "parallel.schedule=pipedream-2bw", "train.microbatch=4"}, {.ranks = 4}),
            "parallel.schedule = pipedream-2bw needs at least 3 microbatches of a rank of stage 0 in a step, as many as "
            "it has in flight, and there are 2: lower train.microbatch, or raise train.batch");
  EXPECT_EQ(refusal({"parallel.pipe=2", "parallel.schedule=pipedream", "model.untied=true", "parallel.replicas=[3,1]"},
                    {.ranks = 4}),
            "parallel.schedule = pipedream: the microbatches of a step must divide over the 3 replicas of stage 0: "
            "change train.batch or train.microbatch");
  EXPECT_EQ(refusal({"parallel.pipe=2", "parallel.schedule=pipedream", "model.untied=true", "parallel.replicas=[2,1]"},
                    {.ranks = 3}),
            "(accepted)");
}

TEST(PlanCheck, StagesOfALooseReplicaShareNothing) {
  const Words local{"parallel.pipe=2", "sync.kind=local"};
  EXPECT_THAT(refusal(local), HasSubstr("sync.kind = local in a pipeline: stages would change the parameters"));
  EXPECT_EQ(refusal({"parallel.pipe=2", "sync.kind=local", "model.untied=true"}), "(accepted)");
  EXPECT_EQ(refusal({"sync.kind=local"}), "(accepted)");
}

TEST(PlanCheck, HogwildIsForThreads) {
  EXPECT_EQ(refusal({"sync.kind=hogwild"}, {.ranks = 2, .one_process = false}),
            "sync.kind = hogwild shares memory between threads: start the run with trireme train --threads");
  EXPECT_EQ(refusal({"sync.kind=hogwild"}, {.ranks = 1, .one_process = false}), "(accepted)");
  EXPECT_EQ(refusal({"sync.kind=hogwild"}, {.ranks = 2, .one_process = true}), "(accepted)");
}

TEST(PlanCheck, ServersAreRanks) {
  EXPECT_EQ(refusal({"sync.kind=server", "sync.servers=3"}),
            "sync.servers = 3, but there are 2 ranks: name at most as many, or 0 for all of them");
  EXPECT_EQ(refusal({"sync.kind=server", "sync.servers=2"}), "(accepted)");
  EXPECT_EQ(refusal({"sync.kind=gossip", "sync.servers=3"}), "(accepted)");  // which does not read it
}

// What a kind says that it reads, and nothing else of sync.*, is a setting of its runs.
TEST(PlanCheck, KindsReadTheOptionsOfTheirRows) {
  for (const auto& row : all_sync_kinds()) {
    SCOPED_TRACE(row.name);
    RunConfig config;
    config.sync.kind = row.kind;
    const auto settings = describe(config);
    EXPECT_EQ(settings.text("sync.kind"), row.name);
    for (const char* option : row.options) EXPECT_TRUE(settings.is_read(fmt::format("sync.{}", option))) << option;
    EXPECT_EQ(settings.is_read("sync.staleness"), row.kind == SyncKind::stale || row.kind == SyncKind::server);
    EXPECT_FALSE(settings.is_read("sync.codec_block"));
    EXPECT_TRUE(settings.is_read("sync.bucket_mb"));
  }
}

}  // namespace
}  // namespace trireme
