#include "trireme/spec/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Plans of a model with layers of uneven work, and their files.
class PlanFileTest : public testing::Test {
 protected:
  static LayerTable layers(size_t count = 9) {
    LayerTable table;
    table.layers.resize(count);
    for (size_t i = 0; i < count; ++i) table.layers[i].forward_flops = static_cast<double>(1 + i % 3);
    return table;
  }

  Plan plan_of(const Words& settings, int ranks = 4) const {
    return make_plan(load_config({}, about_the_run + settings), layers(), {ranks, 1000});
  }

  std::filesystem::path file(const std::string& text, const std::string& name = "plan.yaml") const {
    std::ofstream(folder / name) << text;
    return folder / name;
  }

  // By a configuration that knows nothing of what the plan decides.
  Plan read_back(const std::string& yaml) const {
    const auto plan = read_plan(file(yaml));
    const auto config = load_config({}, about_the_run, &plan);
    const Facts facts{static_cast<int>(plan.made_for.ranks), 1000};
    check_made_for(plan, made_for(config, layers(), facts));
    return make_plan(config, layers(), facts);
  }

  void expect_read_back(const Words& settings, int ranks = 4) const {
    const auto plan = plan_of(settings, ranks);
    const auto yaml = plan_yaml(plan);
    const auto again = read_back(yaml);
    EXPECT_TRUE(again == plan) << yaml << plan_yaml(again);
    EXPECT_EQ(plan_yaml(again), yaml);
  }

  // The message with which a plan is refused, in which a line is another one.
  std::string refusal(const std::string& line, const std::string& other, const Words& overrides = {}) const {
    auto yaml = plan_yaml(plan_of({"parallel.pipe=2", "parallel.cuts=4"}));
    const auto place = yaml.find("  " + line + "\n");
    EXPECT_NE(place, std::string::npos) << line;
    yaml.replace(place, line.size() + 3, other.empty() ? "" : "  " + other + "\n");
    const auto message = refusal_of([&] {
      const auto plan = read_plan(file(yaml));
      load_config({}, about_the_run + overrides, &plan);
    });
    const auto name = (folder / "").string();
    return message.starts_with(name) ? message.substr(name.size()) : message;
  }

  const Words about_the_run{"train.batch=24", "optimizer.clip=0", "train.nonfinite_limit=0"};
  const TemporaryFolder folder;
};

TEST_F(PlanFileTest, EveryScheduleIsReadBack) {
  file("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", "table.csv");
  const Words all{"parallel.in_flight=3", "parallel.chunks=3", "parallel.vertical_sync=true", "parallel.predict=1.5",
                  "parallel.schedule_file=" + (folder / "table.csv").string()};
  for (const auto& row : all_schedules()) {
    SCOPED_TRACE(row.name);
    Words settings{"parallel.pipe=2", fmt::format("parallel.schedule={}", row.name), "train.microbatch=4"};
    if (!row.reads_file()) expect_read_back(settings);
    for (const auto& option : all) {
      if (row.reads(option.substr(9, option.find('=') - 9))) settings.push_back(option);
    }
    expect_read_back(settings);
  }
  expect_read_back({"parallel.pipe=2", "parallel.schedule=arrival", "parallel.deterministic=true"});
}

TEST_F(PlanFileTest, EveryWayToKeepReplicasTogetherIsReadBack) {
  const std::vector<Words> ways{{"sync.kind=allreduce", "sync.bucket_mb=0.3"},
                                {"sync.kind=allreduce", "sync.order=forward", "sync.credit_mb=0.1"},
                                {"sync.kind=root"},
                                {"sync.kind=stale", "sync.staleness=2", "sync.adapt_lr=true"},
                                {"sync.kind=eager", "sync.eager=majority", "sync.every=3"},
                                {"sync.kind=local", "sync.outer_lr=0.7", "sync.outer_momentum=0.9",
                                 "sync.overlap=true"},
                                {"sync.kind=server", "sync.servers=2", "sync.staleness=-1"},
                                {"sync.kind=elastic", "sync.elasticity=0.1"},
                                {"sync.kind=gossip", "sync.graph=pairs"},
                                {"sync.kind=hogwild"}};
  for (const auto& way : ways) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(way, " ")));
    expect_read_back(way);
  }
  for (const auto* codec : {"auto", "fp16", "bf16", "int8", "int4", "sign", "topk", "threshold", "lowrank", "bound"}) {
    SCOPED_TRACE(codec);
    expect_read_back({fmt::format("sync.codec={}", codec), "sync.codec_feedback=false", "sync.codec_block=512",
                      "sync.codec_rounding=stochastic", "sync.codec_keep=0.123456789012345678", "sync.codec_rank=3",
                      "sync.codec_threshold=1e-7", "sync.codec_bound=3e-4", "sync.codec_bound_kind=relative"});
  }
}

TEST_F(PlanFileTest, EveryLayoutIsReadBack) {
  expect_read_back({}, 1);
  expect_read_back({});
  expect_read_back({"parallel.shares=[3, 0.7, 1, 2]", "train.microbatch=5"});
  expect_read_back({"parallel.pipe=4"});
  expect_read_back({"parallel.pipe=3", "parallel.cuts=[1, 8]"}, 6);
  expect_read_back({"parallel.pipe=2", "parallel.replicas=[3, 1]", "train.microbatch=2"});
  expect_read_back({"parallel.pipe=2", "parallel.replicas=[2, 2]"});
  expect_read_back({"parallel.pipe=2", "parallel.schedule=zero-bubble-v", "parallel.cuts=[2, 3, 7]"}, 2);
  expect_read_back({"memory.activations=recompute", "parallel.pipe=2", "parallel.schedule=interleaved"});
}

TEST_F(PlanFileTest, PlansThatDifferAnywhereAreTwo) {
  const auto table = file("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "table.csv").string();
  const Words two{"parallel.pipe=2", "train.microbatch=6"};
  const std::vector<std::pair<Words, std::string>> changes{
      {{}, "parallel.pipe=4"},
      {{}, "parallel.shares=[2, 1, 1, 1]"},
      {{}, "train.microbatch=2"},
      {{}, "memory.activations=recompute"},
      {{}, "sync.bucket_mb=1"},
      {{}, "sync.codec=int8"},
      {two, "parallel.replicas=[1, 3]"},
      {two, "parallel.cuts=[2]"},
      {two, "parallel.schedule=gpipe"},
      {two + Words{"parallel.schedule=arrival"}, "parallel.deterministic=true"},
      {two + Words{"parallel.schedule=zero-bubble"}, "parallel.in_flight=3"},
      {two + Words{"parallel.schedule=interleaved"}, "parallel.chunks=3"},
      {two + Words{"parallel.schedule=pipedream"}, "parallel.vertical_sync=true"},
      {two + Words{"parallel.schedule=pipedream"}, "parallel.predict=1"},
      {two, "train.batch=12"},
  };
  for (const auto& [settings, change] : changes) {
    const auto before = plan_of(settings), after = plan_of(settings + Words{change});
    EXPECT_FALSE(before == after) << change;
    EXPECT_NE(plan_yaml(before), plan_yaml(after)) << change;
    EXPECT_TRUE(before == plan_of(settings)) << change;
  }
  EXPECT_FALSE(plan_of({}) == plan_of({}, 2));
  // Tables are compared by what they say.
  const Words by_table = two + Words{"parallel.schedule=file", "parallel.schedule_file=" + table};
  const auto before = plan_of(by_table);
  EXPECT_TRUE(before == plan_of(by_table));
  file("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "table.csv");
  EXPECT_FALSE(before == plan_of(by_table));
}

TEST_F(PlanFileTest, SaysWhatIsDecidedInNumbers) {
  const auto yaml = plan_yaml(plan_of({"parallel.pipe=2", "parallel.schedule=interleaved"}));
  EXPECT_THAT(yaml, HasSubstr("made_for:\n  ranks: 4\n  layers: 9\n  batch: 24\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  data: 2\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  cuts: [2, 4, 6]\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  chunks: 2\n"));
  EXPECT_THAT(yaml, Not(HasSubstr("limit_mb")));
}

TEST_F(PlanFileTest, WinsOverFilesAndYieldsToTheCommandLine) {
  const auto run = file("parallel: {schedule: gpipe, pipe: 4}\ntrain: {microbatch: 3}\nsync: {bucket_mb: 1}\n",
                        "run.yaml");
  const auto plan = read_plan(file("made_for: {ranks: 4, layers: 9, batch: 24}\n"
                                   "parallel: {pipe: 2, schedule: zero-bubble}\ntrain: {microbatch: 4}\n"));
  const auto config = load_config({run}, {"train.microbatch=6", "train.batch=24"}, &plan);
  EXPECT_EQ(config.parallel.pipe, 2);
  EXPECT_EQ(config.parallel.schedule, ScheduleKind::zero_bubble);
  EXPECT_EQ(config.train.microbatch, 6);
  EXPECT_EQ(config.sync.bucket_mb, 1);  // which the plan leaves to the file
}

TEST_F(PlanFileTest, IsRefusedWithTheLine) {
  EXPECT_EQ(refusal("cuts: [4]", "cuts: [4, 4]", {"parallel.pipe=3", "parallel.data=1", "parallel.replicas=[]"}),
            "plan.yaml:3: 4 ranks cannot be laid out as parallel.pipe = 3 times parallel.data = 1: start 3 ranks, or "
            "change the layout");
  EXPECT_EQ(refusal("cuts: [4]", "cuts: [4, 4, 5]", {"parallel.pipe=4", "parallel.data=1"}),
            "plan.yaml:11: parallel.cuts = [4, 4, 5]: each must be above the one before and below 9, the number of "
            "layers");
  EXPECT_EQ(refusal("cuts: [4]", "cuts: [9]"),
            "plan.yaml:11: parallel.cuts = [9]: each must be above the one before and below 9, the number of layers");
  EXPECT_EQ(refusal("cuts: [4]", "cuts: [4]", {"parallel.cuts=[10]"}),
            "command line: parallel.cuts = [10]: each must be above the one before and below 9, the number of layers");
  EXPECT_EQ(refusal("cuts: [4]", "cuts: [4, 6]"),
            "plan.yaml:11: parallel.cuts = [4, 6] must name one layer less than parallel.pipe = 2 (" +
                (folder / "plan.yaml").string() + ":7)");
  EXPECT_EQ(refusal("pipe: 2", "pipe: 0"), "plan.yaml:7: parallel.pipe = 0 must be at least 1");
  EXPECT_EQ(refusal("pipe: 2", "pip: 2"), "plan.yaml:7: unknown key parallel.pip, did you mean parallel.pipe?");
  EXPECT_EQ(refusal("microbatch: 0", "batch: 24"),
            "plan.yaml:20: unknown key train.batch, did you mean made_for.batch?");
  EXPECT_EQ(refusal("layers: 9", ""),
            "plan.yaml: made_for.layers is missing: a plan says what it was made for, so that no other run takes it "
            "for its own; add it, as plan.yaml of a run's folder has it");
  EXPECT_THAT(refusal("layers: 9", "layers: 0"), HasSubstr("plan.yaml:4: made_for.layers = 0 must be at least 1"));
  EXPECT_THAT(refusal_of([&] { read_plan(file("version: 2\nnews: 1\n")); }),
              HasSubstr("plan.yaml:1: version = 2: made by a newer Trireme than this one, which reads plans up to "
                        "version 1"));
  const auto many = read_plan(file("made_for: {ranks: 4, layers: 3, batch: 24}\nparallel: {pipe: 4}\n"));
  EXPECT_THAT(refusal_of([&] { load_config({}, about_the_run, &many); }),
              HasSubstr("plan.yaml:2: parallel.pipe = 4: the model has 3 layers, and a stage needs at least one"));
  for (const char* nothing : {"", "# words\n", "version: 1\n"}) {
    EXPECT_THAT(refusal_of([&] { read_plan(file(nothing)); }),
                HasSubstr("plan.yaml: this plan is empty: give plan.yaml of a run's folder"));
  }
  EXPECT_EQ(refusal("pipe: 2", "pipe: two"), "plan.yaml:7: parallel.pipe = two must be an integer");
  EXPECT_EQ(refusal("pipe: 2", "pipe: 2\n  pipe: 2"), "plan.yaml:8: parallel.pipe is given twice, first in line 7");
  EXPECT_EQ(refusal("cuts: [4]", "cuts: {4: 1}"),
            "plan.yaml:11: parallel.cuts must have one value (list of integers), not a map");
  EXPECT_EQ(refusal("activations: keep", "activations: {h.9: recompute}"),
            "plan.yaml:22: memory.activations must have one value (keep | recompute), not a map");
  EXPECT_EQ(refusal("activations: keep", "activations: recompute h.9"),
            "plan.yaml:22: memory.activations = recompute h.9 must be one of keep, recompute (did you mean recompute?)");
  EXPECT_THAT(refusal_of([&] { read_plan(file("[1]")); }), HasSubstr("a plan is a map of sections, not a list"));
  EXPECT_THAT(refusal_of([&] { read_plan(folder / "none.yaml"); }), HasSubstr("none.yaml: there is no such plan"));
  EXPECT_THAT(refusal_of([&] { read_plan(folder / ""); }), HasSubstr("this is a folder, not a plan file"));
}

TEST_F(PlanFileTest, IsForNoOtherRun) {
  const auto plan = read_plan(file(plan_yaml(plan_of({"parallel.pipe=2"}))));
  const auto made = plan.made_for;
  check_made_for(plan, made);
  const auto with = [&](int64_t MadeFor::* field, int64_t value) {
    auto other = made;
    other.*field = value;
    return refusal_of([&] { check_made_for(plan, other); });
  };
  EXPECT_THAT(with(&MadeFor::ranks, 2),
              HasSubstr("plan.yaml:3: made_for.ranks = 4, but this run has 2: start 4 ranks, or use a plan that was"));
  EXPECT_THAT(with(&MadeFor::layers, 8), HasSubstr("plan.yaml:4: made_for.layers = 9, but this run has 8: train the"));
  EXPECT_THAT(with(&MadeFor::batch, 8),
              HasSubstr("plan.yaml:5: made_for.batch = 24, but this run has 8: set train.batch=24"));
}

}  // namespace
}  // namespace trireme
