// Runs that are split as a file says (spec/plan_file.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/spec/models/models.h"
#include "trireme/train/checkpoint.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunByPlan : public testing::Test {
 protected:
  fs::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return folder / name;
  }

  static std::string text_of(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  RunConfig config_in(const std::string& name, RunConfig config = small_gpt()) {
    config.run_dir = folder / name;
    return config;
  }

  // As `trireme train CONFIG --plan PLAN` does.
  void run_by(const fs::path& plan, const RunConfig& config, RunOptions options = {}) {
    options.plan = read_plan(plan);
    const auto decided = load_config({file("config.yaml", resolved_yaml(config))}, {}, &*options.plan);
    run_whole(decided, options, static_cast<int>(options.plan->made_for.ranks));
  }

  std::vector<double> losses(const std::string& name) {
    std::vector<double> found;
    std::ifstream lines(folder / name / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      if (object.contains("loss")) found.push_back(object.at("loss"));
    }
    return found;
  }

  const TemporaryFolder folder;
};

TEST_F(RunByPlan, GivesTheSameNumbersAndTheSamePlan) {
  auto config = config_in("first");
  config.train.precision = Precision::fp32;  // in which another order of sums shows
  config.train.microbatch = 2;
  config.parallel.pipe = 2;
  config.parallel.cuts = {1};
  config.parallel.shares = {1, 3};
  config.parallel.schedule = ScheduleKind::zero_bubble;
  config.sync.codec.kind = CodecKind::int8;
  config.memory.activations = ActivationKind::recompute;
  run_whole(config, {}, 4);
  auto plain = config_in("second");
  plain.train.precision = Precision::fp32;
  run_by(folder / "first/plan.yaml", plain);
  EXPECT_EQ(losses("first").size(), 10u);
  EXPECT_EQ(losses("second"), losses("first"));
  EXPECT_EQ(text_of(folder / "second/plan.yaml"), text_of(folder / "first/plan.yaml"));
  run_whole(config_in("other", plain), {}, 4);
  EXPECT_NE(losses("other"), losses("first"));
}

TEST_F(RunByPlan, IsRefusedForAnotherModel) {
  run_whole(config_in("first"), {}, 2);
  auto larger = config_in("second");
  larger.model.layers = 3;
  EXPECT_THAT(refusal_of([&] { run_by(folder / "first/plan.yaml", larger); }),
              HasSubstr("first/plan.yaml:6: made_for.layers = 4, but this run has 5: train the model that it was"));
  EXPECT_FALSE(fs::exists(folder / "second"));
}

// The plan names the codec that sync.codec = auto has chosen: that is no other one.
TEST_F(RunByPlan, ResumesWithTheCodecThatWasChosen) {
  auto config = config_in("run");
  config.train.precision = Precision::fp32;
  config.sync.codec.kind = CodecKind::automatic;
  config.checkpoint.every = 5;
  run_whole(config, {}, 2);
  const auto whole = losses("run");
  fs::remove_all(folder / "run/checkpoints/step-10");
  const auto chosen = open_checkpoint(folder / "run/checkpoints/step-5").codec;
  const auto plan = file("plan.yaml", text_of(folder / "run/plan.yaml"));
  EXPECT_THAT(text_of(plan), HasSubstr("\n  codec: " + chosen + "\n"));
  run_by(plan, config, {.resume = true});
  EXPECT_EQ(losses("run"), whole);

  fs::remove_all(folder / "run/checkpoints/step-10");
  auto text = text_of(plan);
  const auto line = "\n  codec: " + chosen + "\n";
  file("plan.yaml", text.replace(text.find(line), line.size(), "\n  codec: sign\n"));
  EXPECT_THAT(refusal_of([&] { run_by(plan, config, {.resume = true}); }),
              HasSubstr("sync.codec was auto in the run that"));
}

TEST_F(RunByPlan, EveryExampleIsReadBack) {
  int examples = 0;
  for (const auto& example : fs::directory_iterator(fs::path(TRIREME_SOURCE) / "examples")) {
    if (example.path().extension() != ".yaml" || example.path().filename() == "fleet.yaml") continue;
    SCOPED_TRACE(example.path().filename().string());
    const auto plain = load_config({example.path()}, {"model.vocab=256"});  // as many as bytes: no data is opened
    const auto table = model_table(plain.model, 256);
    for (const auto& [ranks, pipe] : std::vector<std::pair<int, int>>{{1, 1}, {3, 1}, {2, 2}, {6, 3}}) {
      auto config = plain;
      config.parallel.pipe = pipe;
      config.train.microbatch = pipe > 1 ? 4 : 0;
      const Facts facts{ranks, 1000};
      const auto plan = make_plan(config, table, facts);
      const auto read = read_plan(file("plan.yaml", plan_yaml(plan)));
      const auto again = load_config({example.path()}, {"model.vocab=256"}, &read);
      check_made_for(read, made_for(again, table, facts));
      EXPECT_TRUE(make_plan(again, table, facts) == plan) << plan_yaml(plan);
    }
    ++examples;
  }
  EXPECT_GE(examples, 5);
}

}  // namespace
}  // namespace trireme
