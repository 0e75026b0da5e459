// The law for schedules of several chunks a rank, of split backward passes and of stages with different numbers of
// replicas: the numbers are those of one rank with the same microbatches. fp64, tiny widths, ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include <nlohmann/json.hpp>

#include "tests/data/temporary.h"
#include "tests/close.h"
#include "tests/train/small.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/spec/action_list.h"
#include "trireme/spec/action_table.h"

namespace trireme {
namespace {

using testing::HasSubstr;

struct Case {
  std::string model;
  ScheduleKind schedule;
  std::vector<int64_t> replicas;  // of each stage
  int64_t microbatch;
};

std::string name(ScheduleKind kind) {
  RunConfig config;
  config.parallel.schedule = kind;
  return describe(config).text("parallel.schedule");
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << name(c.schedule) << ", replicas " << fmt::format("{}", fmt::join(c.replicas, "-"))
       << ", microbatches of " << c.microbatch;
}

RunConfig configuration(const std::string& model) {
  auto config = small_gpt();
  config.train.batch = 8;
  if (model == "gpt") {
    config.model.layers = 6;  // eight layers, the first and the last of which share their table
  } else if (model == "mlp") {
    config = small_mlp();
    config.train.batch = 8;
    config.model.layers = 8;
  } else {
    config = model == "resnet18" ? small_images(ModelKind::resnet18) : small_images(ModelKind::vgg11, 32);
    config.train.batch = 8;
  }
  return config;
}

int ranks_of(const std::vector<int64_t>& replicas) {
  return static_cast<int>(std::accumulate(replicas.begin(), replicas.end(), int64_t{0}));
}

void expect_same(const Outcome& expected, const Outcome& found) {
  ASSERT_EQ(expected.reports.size(), found.reports.size());
  for (size_t i = 0; i < expected.reports.size(); ++i) {
    EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
    EXPECT_NEAR(found.reports[i].grad_norm / expected.reports[i].grad_norm, 1, 1e-9) << "step " << i + 1;
  }
  double squares = 0, norm = 0;
  ASSERT_EQ(expected.by_name.size(), found.by_name.size());
  for (const auto& [name, values] : expected.by_name) {
    squares += (values - found.by_name.at(name)).square().sum().item<double>();
    norm += values.square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(squares / norm), 1e-9);
  ASSERT_TRUE(found.evaluation && expected.evaluation);
  EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
}

void check_law(const Case& c, int64_t steps) {
  auto config = configuration(c.model);
  config.train.microbatch = c.microbatch;
  // Equal replicas normalise a microbatch of all of them together, which no one rank has: there the law is that cuts
  // and schedules change nothing.
  const auto& replicas = c.replicas;
  const bool equal = std::adjacent_find(replicas.begin(), replicas.end(), std::not_equal_to<>()) == replicas.end();
  const bool together = equal && c.model == "resnet18";
  const auto expected = run_trainer(config, together ? static_cast<int>(c.replicas[0]) : 1, steps);
  config.parallel.pipe = static_cast<int64_t>(c.replicas.size());
  config.parallel.schedule = c.schedule;
  config.parallel.replicas = c.replicas;
  expect_same(expected, run_trainer(config, ranks_of(c.replicas), steps));
}

class ScheduleLaw : public testing::TestWithParam<Case> {};

TEST_P(ScheduleLaw, GivesTheNumbersOfOneRank) {
  const bool image = GetParam().model == "resnet18" || GetParam().model == "vgg11";
  check_law(GetParam(), image ? 2 : 6);
}

// Every pair of values of two properties occurs at least once.
constexpr auto gpipe = ScheduleKind::gpipe, f1b1 = ScheduleKind::one_forward_one_backward,
               arrival = ScheduleKind::arrival, interleaved = ScheduleKind::interleaved,
               zero_bubble = ScheduleKind::zero_bubble, vee = ScheduleKind::zero_bubble_v;
INSTANTIATE_TEST_SUITE_P(Pairwise, ScheduleLaw,
                         testing::Values(Case{"gpt", interleaved, {1, 1, 1, 1}, 1},
                                         Case{"gpt", zero_bubble, {1, 1, 1, 1}, 2}, Case{"gpt", vee, {1, 1, 1}, 1},
                                         Case{"gpt", interleaved, {2, 2}, 3}, Case{"gpt", f1b1, {3, 1}, 1},
                                         Case{"gpt", gpipe, {1, 2, 1}, 2}, Case{"gpt", zero_bubble, {1, 3}, 1},
                                         Case{"gpt", vee, {2, 1}, 2}, Case{"gpt", arrival, {2, 1, 1}, 1},
                                         Case{"mlp", interleaved, {1, 2}, 1}, Case{"mlp", zero_bubble, {2, 2}, 2},
                                         Case{"mlp", vee, {1, 1, 1, 1}, 1}, Case{"mlp", f1b1, {1, 2, 3}, 1},
                                         Case{"mlp", arrival, {3, 2}, 3}, Case{"mlp", gpipe, {3, 1, 1}, 2},
                                         Case{"resnet18", interleaved, {1, 1}, 4},
                                         Case{"resnet18", zero_bubble, {1, 1}, 2}, Case{"resnet18", vee, {1, 1}, 4},
                                         Case{"resnet18", f1b1, {2, 1}, 2}, Case{"resnet18", vee, {2, 2}, 3},
                                         Case{"vgg11", interleaved, {1, 1}, 2}, Case{"vgg11", zero_bubble, {2, 1}, 4},
                                         Case{"vgg11", vee, {1, 1}, 4}, Case{"vgg11", f1b1, {3, 1}, 2}));

// Weights' gradients fill waits, which are others on each replica. Where replicas exchange statistics, their gradients
// are still summed in the same place of the order on all.
TEST(Schedules, SumsKeepTheirPlaceAmongExchangesOfStatistics) {
  auto config = configuration("resnet18");
  config.train.microbatch = 1;
  const auto expected = run_trainer(config, 2, 3);
  config.parallel = {.pipe = 2, .schedule = vee};
  // Each rank stumbles where no other does.
  const auto stumble = [](StageTrainer& trainer, World& world, int64_t step) {
    if (step > 1) return;
    trainer.executor().set_before_task([random = std::minstd_rand(static_cast<unsigned>(world.rank() + 1))]() mutable {
      if (random() % 2 == 0) usleep(random() % 20'000);
    });
  };
  expect_same(expected, run_trainer(config, 4, 3, stumble));
}

// By hand (make pipelines).
class SchedulesByHand : public testing::TestWithParam<const char*> {};

TEST_P(SchedulesByHand, DISABLED_TheWholeProduct) {
  const std::string model = GetParam();
  const bool image = model == "resnet18" || model == "vgg11";
  int runs = 0;
  for (const auto schedule : {gpipe, f1b1, arrival, interleaved, zero_bubble, vee}) {
    for (const auto& replicas : std::vector<std::vector<int64_t>>{
             {1, 1}, {2, 2}, {1, 1, 1}, {1, 1, 1, 1}, {3, 1}, {1, 3}, {2, 1, 1}, {1, 2, 3}}) {
      for (const int64_t microbatch : {1, 2, 3}) {
        const Case c{model, schedule, replicas, microbatch};
        SCOPED_TRACE(testing::PrintToString(c));
        // Replicas that exchange statistics need one order of passes.
        if (image && schedule == arrival && replicas[0] > 1) continue;
        check_law(c, image ? 2 : 5);
        ++runs;
      }
    }
  }
  std::printf("%s: %d runs\n", model.c_str(), runs);
}

INSTANTIATE_TEST_SUITE_P(Models, SchedulesByHand, testing::Values("gpt", "mlp", "resnet18", "vgg11"));

RunConfig without_whole_gradients(RunConfig config) {
  config.optimizer.clip = 0;
  config.train.nonfinite_limit = 0;
  return config;
}

// Stages go on into the next step when their own parameters have changed; the totals come a step later.
TEST(Schedules, NobodyWaitsForAllWhereNothingDependsOnAll) {
  for (const bool untied : {false, true}) {
    auto config = without_whole_gradients(configuration("gpt"));
    config.model.untied = untied;
    config.train.microbatch = 1;
    config.train.steps = 7;
    const auto expected = run_trainer(config, 1, 7);
    for (const auto schedule : {f1b1, arrival, interleaved, zero_bubble, vee}) {
      for (const auto& replicas : std::vector<std::vector<int64_t>>{{1, 1, 1}, {2, 1}, {2, 2}}) {
        for (const double jitter_ms : {0.0, 1.0}) {
          SCOPED_TRACE(fmt::format("{}, {}", name(schedule), fmt::join(replicas, "-")));
          auto cut = config;
          cut.comm.jitter_ms = jitter_ms;
          cut.parallel = {.pipe = static_cast<int64_t>(replicas.size()),
                          .schedule = schedule,
                          .options = {.in_flight = schedule == zero_bubble ? 5 : 0},
                          .replicas = replicas};
          const auto found = run_trainer(cut, ranks_of(replicas), 7, [](StageTrainer& trainer, World&, int64_t step) {
            EXPECT_EQ(trainer.together(), step == 1);
          });
          expect_same(expected, found);
          for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(found.reports[static_cast<size_t>(i)].step, i + 1);
        }
      }
    }
  }
}

// Every step is told once, with its own loss; they meet where something is due; what is resumed is as if nothing had
// happened.
TEST(Schedules, LateTotalsAreToldSavedAndResumed) {
  const auto folder = std::filesystem::path(process_folder()) / "late";
  std::filesystem::remove_all(folder);
  auto config = without_whole_gradients(configuration("gpt"));
  config.train.microbatch = 2;
  config.train.steps = 10;
  config.train.eval_every = 3;
  config.checkpoint = {.every = 4, .keep = 9};
  const auto told = [&](const char* run) {
    std::map<int64_t, double> losses;
    std::ifstream metrics(folder / run / "metrics.jsonl");
    for (std::string text; std::getline(metrics, text);) {
      const auto line = nlohmann::json::parse(text);
      if (!line.contains("loss")) continue;
      EXPECT_TRUE(losses.emplace(line["step"], line["loss"]).second) << text;
      EXPECT_EQ(line.contains("eval_loss"), line["step"] == 10 || line["step"].get<int64_t>() % 3 == 0) << text;
    }
    return losses;
  };
  config.run_dir = (folder / "one").string();
  run_whole(config);
  const auto expected = told("one");
  ASSERT_EQ(expected.size(), 10);
  config.parallel = {.pipe = 3, .schedule = zero_bubble, .options = {.in_flight = 5}};
  config.run_dir = (folder / "three").string();
  run_whole(config, {}, 3);
  const auto found = told("three");
  ASSERT_EQ(found.size(), 10);
  for (const auto& [step, loss] : expected) EXPECT_NEAR(found.at(step) / loss, 1, 1e-9) << "step " << step;

  const auto last = folder / "three/checkpoints/step-10";
  const auto bytes = bytes_of(last);
  ASSERT_FALSE(bytes.empty());
  RunOptions options;
  options.resume = true;
  options.resume_from = folder / "three/checkpoints/step-4";
  EXPECT_EQ(run_whole(config, options, 3).steps, 10);
  EXPECT_EQ(bytes_of(last), bytes);
}

TEST(Schedules, LateTotalsThatAreNotFiniteEndTheRunInTheirStep) {
  auto config = without_whole_gradients(configuration("gpt"));
  config.train.microbatch = 2;
  config.optimizer.lr = 1e300;
  config.optimizer.warmup = 0;
  config.parallel = {.pipe = 2, .schedule = zero_bubble};
  try {
    run_trainer(config, 2, config.train.steps);
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 2: loss nan"));
  }
}

TEST(Schedules, TensorsMaySkipStagesAndChunks) {
  for (const auto schedule : {interleaved, zero_bubble, vee}) {
    for (const auto& replicas : std::vector<std::vector<int64_t>>{{1, 1, 1, 1}, {2, 1}}) {
      SCOPED_TRACE(fmt::format("{}, {} stages", name(schedule), replicas.size()));
      auto config = configuration("gpt");
      config.model.skip = true;
      config.train.microbatch = 2;
      const auto expected = run_trainer(config, 1, 4);
      config.parallel = {.pipe = static_cast<int64_t>(replicas.size()), .schedule = schedule, .replicas = replicas};
      expect_same(expected, run_trainer(config, ranks_of(replicas), 4));
    }
  }
}

TEST(Schedules, EachBucketMayHaveARoot) {
  for (const auto schedule : {interleaved, zero_bubble, f1b1}) {
    auto config = configuration("gpt");
    config.sync.bucket_mb = 0.001;
    config.train.microbatch = 2;
    const auto expected = run_trainer(config, 1, 4);
    config.sync.kind = SyncKind::root;
    config.parallel = {.pipe = 2, .schedule = schedule, .replicas = {2, 1}};
    expect_same(expected, run_trainer(config, 3, 4));
  }
}

// A table of actions from a file: here that of zero-bubble as a V.
TEST(Schedules, ATableOfActionsRuns) {
  const auto mesh = make_mesh({.pipe = 3, .schedule = vee}, 3);
  std::vector<ActionList> rows;
  for (int s = 0; s < 3; ++s) {
    const auto schedule = make_schedule(vee, place_of(mesh, s, 0, 4), {});
    rows.push_back(*schedule->plan());
  }
  const auto path = std::filesystem::path(process_folder()) / "actions.csv";
  write_atomically(path, action_table_text(rows, true));
  auto config = configuration("gpt");
  config.train.microbatch = 2;
  const auto expected = run_trainer(config, 1, 4);
  config.parallel = {.pipe = 3, .schedule = ScheduleKind::file, .options = {.file = path.string()}};
  expect_same(expected, run_trainer(config, 3, 4));
  config.train.microbatch = 1;
  try {
    run_trainer(config, 3, 1);
    ADD_FAILURE() << "a table for other microbatches was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is for 4 microbatches, and a step has 8"));
  }
}

// Counted in bytes: what a pass through a chunk leaves, times what the list says is held at once.
TEST(Schedules, HoldTheBytesThatTheFormulasSay) {
  for (const auto schedule : {interleaved, zero_bubble}) {
    auto config = configuration("mlp");
    config.model.layers = 9;
    config.model.inputs = config.model.width;
    config.model.classes = config.model.width;
    config.train.microbatch = 1;
    config.parallel = {.pipe = 2, .schedule = schedule, .options = {.chunks = schedule == interleaved ? 2 : 0}};
    run_trainer(config, 2, 3, [&](StageTrainer& trainer, World& world, int64_t step) {
      if (step == 1) return;
      const int64_t held = trainer.activation_bytes(), each = trainer.microbatch_bytes();
      // A pass that waits for its weights' gradients alone holds the inputs of its products, and the gradients of
      // their outputs beside them.
      const int64_t most = 2 * each;
      EXPECT_LE(held, trainer.schedule().in_flight() * most) << name(schedule) << ", rank " << world.rank();
      EXPECT_GT(held, (trainer.schedule().in_flight() - 1) * each / 2) << name(schedule) << ", rank " << world.rank();
    });
  }
}

// Layers that keep their inputs alone: the same numbers, dropout and running statistics included, and fewer bytes.
TEST(Schedules, WhatIsComputedAgainIsTheSame) {
  for (const auto* model : {"gpt", "resnet18"}) {
    for (const auto schedule : {f1b1, zero_bubble, interleaved}) {
      SCOPED_TRACE(fmt::format("{}, {}", model, name(schedule)));
      auto config = configuration(model);
      config.train.microbatch = 2;
      const auto expected = run_trainer(config, 1, 2);
      config.parallel = {.pipe = 2, .schedule = schedule};
      int64_t bytes[2] = {};
      for (const auto kept : {ActivationKind::keep, ActivationKind::recompute}) {
        config.memory.activations = kept;
        const auto found = run_trainer(config, 2, 2, [&](StageTrainer& trainer, World& world, int64_t step) {
          if (step == 2 && world.rank() == 0) bytes[kept == ActivationKind::keep ? 0 : 1] = trainer.activation_bytes();
        });
        expect_same(expected, found);
      }
      if (schedule != zero_bubble) {
        EXPECT_LT(bytes[1], bytes[0] / 2);
      }
    }
  }
}

TEST(Schedules, RefuseWhatCannotBe) {
  auto config = configuration("gpt");
  config.parallel = {.pipe = 4, .schedule = interleaved, .options = {.chunks = 3}};
  EXPECT_THAT(refusal(config, 4), HasSubstr("parallel.pipe = 4 with 3 chunks on each rank: the model has 8 layers"));
  config.parallel = {.pipe = 2, .schedule = vee, .cuts = {1, 2}};
  EXPECT_THAT(refusal(config, 2), HasSubstr("4 parts of the model need 3 cuts"));
  config.parallel = {.pipe = 2, .replicas = {3, 1}};
  config.train.microbatch = 4;
  EXPECT_THAT(refusal(config, 4), HasSubstr("the 3 replicas of stage 0 cannot share the 2 microbatches of a step"));
  EXPECT_THAT(refusal(config, 3), HasSubstr("3 ranks cannot be laid out as parallel.replicas = [3, 1]: start 4 ranks"));
}

}  // namespace
}  // namespace trireme
