// Runs that are split as a file says (spec/plan_file.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/sync_settings.h"
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

// Every example, under every schedule and every way to keep replicas together that it can be trained with.
TEST_F(RunByPlan, EveryExampleIsReadBack) {
  std::vector<std::vector<std::string>> ways{{}, {"memory.activations=recompute"}};
  for (const auto& row : all_schedules()) {
    if (row.reads_file()) continue;  // PlanFileTest has a table
    for (const char* pipe : {"2", "3"})
      ways.push_back({fmt::format("parallel.schedule={}", row.name), fmt::format("parallel.pipe={}", pipe),
                      "train.microbatch=2"});
  }
  for (const auto& row : all_sync_kinds()) {
    ways.push_back({fmt::format("sync.kind={}", row.name), "model.batch_norm=local"});
    ways.push_back({fmt::format("sync.kind={}", row.name), "sync.codec=int8"});
  }
  std::set<std::string> examples, names;
  for (const auto& example : fs::directory_iterator(fs::path(TRIREME_SOURCE) / "examples")) {
    if (example.path().extension() != ".yaml" || example.path().filename() == "fleet.yaml") continue;
    for (const auto& way : ways) {
      std::vector<std::string> undecided{"model.vocab=256"};  // as many as bytes: no data is opened
      std::copy_if(way.begin(), way.end(), std::back_inserter(undecided),
                   [](const auto& word) { return word.starts_with("model."); });
      auto words = way;
      words.push_back("model.vocab=256");
      SCOPED_TRACE(fmt::format("{} {}", example.path().filename().string(), fmt::join(words, " ")));
      for (const int replicas : {1, 2}) {
        LayerTable table;
        Facts facts{.training_samples = 1000};
        std::optional<Plan> plan;
        try {
          const auto config = load_config({example.path()}, words);
          table = model_table(config.model, 256);
          facts.ranks = static_cast<int>(config.parallel.pipe) * replicas;
          plan = make_plan(config, table, facts);
        } catch (const Error&) {
          continue;  // this model cannot be split so
        }
        const auto read = read_plan(file("plan.yaml", plan_yaml(*plan)));
        const auto again = load_config({example.path()}, undecided, &read);
        check_made_for(read, made_for(again, table, facts));
        EXPECT_TRUE(make_plan(again, table, facts) == *plan) << plan_yaml(*plan);
        examples.insert(example.path().filename().string());
        names.insert(row_of(plan->schedule).name);
        names.insert(row_of(plan->sync.kind).name);
      }
    }
  }
  EXPECT_THAT(examples, testing::ElementsAre("gpt.yaml", "llama.yaml", "mlp.yaml", "resnet.yaml", "tiny.yaml"));
  EXPECT_EQ(names.size(), all_schedules().size() - 1 + all_sync_kinds().size());
}

// What docs/plans.md shows is a plan, of the example that it speaks of.
TEST_F(RunByPlan, TheDocumentsAreReadBack) {
  const auto page = text_of(fs::path(TRIREME_SOURCE) / "docs/plans.md");
  const std::string fence = "```yaml\n";
  const auto begin = page.find(fence) + fence.size();
  const auto shown = read_plan(file("shown.yaml", page.substr(begin, page.find("```", begin) - begin)));
  const std::vector<fs::path> example{fs::path(TRIREME_SOURCE) / "examples/gpt.yaml"};
  const auto config = load_config(example, {"model.vocab=256"}, &shown);
  const auto table = model_table(config.model, 256);
  const Facts facts{static_cast<int>(shown.made_for.ranks), 1000};
  check_made_for(shown, made_for(config, table, facts));
  const auto plan = make_plan(config, table, facts);
  const auto read = read_plan(file("plan.yaml", plan_yaml(plan)));
  EXPECT_TRUE(make_plan(load_config(example, {"model.vocab=256"}, &read), table, facts) == plan);
  for (const auto& line : shown.lines) {
    const auto same = [&](const auto& other) { return other.key == line.key && other.text == line.text; };
    EXPECT_TRUE(std::any_of(read.lines.begin(), read.lines.end(), same)) << line.key << " " << line.text;
  }
}

}  // namespace
}  // namespace trireme
