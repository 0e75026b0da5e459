// The loose ways to keep replicas together, in whole trainers: where they promise the same as allreduce they give its
// numbers; they evaluate and save what replicas agree on; and a run that was interrupted goes on as if it had not been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/close.h"
#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/train/checkpoint.h"

namespace trireme {
namespace {

struct Case {
  const char* name;
  SyncConfig sync;
};

SyncConfig with(SyncKind kind, const std::function<void(SyncConfig&)>& set) {
  SyncConfig sync;
  sync.kind = kind;
  sync.bucket_mb = 0.001;
  set(sync);
  return sync;
}

class LooseLaw : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(LooseLaw, WhatPromisesAllreduceIsAllreduce) {
  const auto& [model, ranks] = GetParam();
  auto config = model == "gpt" ? small_gpt() : small_mlp();
  // Averages of steps are steps by averages where steps are linear in the gradient.
  config.optimizer.kind = OptimizerKind::sgd;
  config.optimizer.clip = 0;  // of the whole gradient, which nobody sees in some of them
  const auto expected = run_trainer(config, 1, 10);
  const Case cases[] = {
      {"stale", with(SyncKind::stale, [](auto& sync) { sync.staleness = 0; })},
      {"local", with(SyncKind::local, [](auto& sync) { sync.every = 1; })},
      {"server", with(SyncKind::server, [](auto& sync) { sync.staleness = 0; })},
      {"one server", with(SyncKind::server,
                          [](auto& sync) {
                            sync.staleness = 0;
                            sync.servers = 1;
                          })},
      {"eager", with(SyncKind::eager, [](auto& sync) { sync.every = 1; })},
  };
  for (const auto& [name, sync] : cases) {
    SCOPED_TRACE(name);
    config.sync = sync;
    for (const int64_t microbatch : {0, 2}) {
      config.train.microbatch = microbatch;
      const auto found = run_trainer(config, ranks, 10);
      for (size_t i = 0; i < 10; ++i)
        EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
      expect_close(found.parameters[0], expected.parameters[0], 1e-9);
      EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, LooseLaw, testing::Combine(testing::Values("gpt", "mlp"), testing::Values(2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_ranks", std::get<0>(info.param), std::get<1>(info.param));
                         });

// A replica that is cut into stages is the same replica, also in what it clips.
TEST(Loose, StagesOfAReplicaAreOne) {
  const Case kinds[] = {
      {"local", with(SyncKind::local, [](auto& sync) { sync.every = 3; })},
      {"diloco", with(SyncKind::local,
                      [](auto& sync) {
                        sync.every = 2;
                        sync.overlap = true;
                        sync.outer_lr = 0.7;
                        sync.outer_momentum = 0.5;
                      })},
      {"stale", with(SyncKind::stale, [](auto& sync) { sync.staleness = 0; })},
  };
  for (const auto* model : {"gpt", "mlp"}) {
    for (const auto& [name, sync] : kinds) {
      SCOPED_TRACE(fmt::format("{}, {}", model, name));
      auto config = std::string(model) == "gpt" ? small_gpt() : small_mlp();
      if (std::string(model) == "gpt") config.model.untied = true;
      config.train.steps = 10;  // the last round ends there
      config.train.microbatch = 1;
      config.optimizer.clip = sync.kind == SyncKind::local ? 0.1 : 0;
      config.sync = sync;
      const auto expected = run_trainer(config, 2, 10);
      config.parallel.pipe = 3;
      for (const auto schedule : {ScheduleKind::one_forward_one_backward, ScheduleKind::zero_bubble}) {
        config.parallel.schedule = schedule;
        config.comm.jitter_ms = 0.3;
        const auto found = run_trainer(config, 6, 10);
        for (size_t i = 0; i < 10; ++i)
          EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
        EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
      }
    }
  }
  auto config = small_gpt();
  config.sync = kinds[0].sync;
  config.parallel.pipe = 2;
  EXPECT_THAT(refusal(config, 4), testing::HasSubstr("stages would change the parameters that they share"));
}

const Case every_kind[] = {
    {"stale", with(SyncKind::stale, [](auto&) {})},
    {"eager", with(SyncKind::eager, [](auto& sync) { sync.every = 3; })},
    {"local", with(SyncKind::local, [](auto& sync) { sync.every = 3; })},
    {"diloco", with(SyncKind::local,
                    [](auto& sync) {
                      sync.every = 3;
                      sync.overlap = true;
                      sync.outer_lr = 0.7;
                      sync.outer_momentum = 0.5;
                    })},
    {"server", with(SyncKind::server, [](auto& sync) { sync.staleness = -1; })},
    {"bounded server", with(SyncKind::server, [](auto& sync) { sync.staleness = 2; })},
    {"elastic", with(SyncKind::elastic, [](auto& sync) { sync.every = 2; })},
    {"gossip", with(SyncKind::gossip, [](auto& sync) { sync.every = 1; })},
    {"hogwild", with(SyncKind::hogwild, [](auto&) {})},
};

RunConfig run_config(const SyncConfig& sync, const std::filesystem::path& folder) {
  auto config = small_mlp();
  config.train.steps = 24;
  config.train.batch = 9;
  config.train.eval_every = 8;
  config.checkpoint.every = 8;
  config.optimizer.schedule = LrSchedule::constant;
  config.sync = sync;
  config.run_dir = folder.string();
  return config;
}

std::vector<nlohmann::json> lines_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Loose, EveryKindEvaluatesAndSavesWhatIsAgreed) {
  for (const auto& [name, sync] : every_kind) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    auto config = run_config(sync, folder / "run");
    config.train.steps = 48;
    config.optimizer.lr = 0.1;
    config.optimizer.momentum = 0;
    config.optimizer.nesterov = false;
    config.data.samples = 400;
    const auto result = run_whole(config, {}, 3);
    EXPECT_EQ(result.steps, 48);
    ASSERT_TRUE(result.eval_loss);
    int64_t last = 0;
    std::vector<double> losses;
    int evaluations = 0;
    for (const auto& line : lines_of(folder / "run")) {
      if (!line.contains("loss")) continue;
      EXPECT_GT(line["step"].get<int64_t>(), last);  // steps only grow
      last = line["step"].get<int64_t>();
      losses.push_back(line["loss"].get<double>());
      evaluations += line.contains("eval_loss");
    }
    EXPECT_EQ(last, 48);
    EXPECT_GE(evaluations, 2);
    for (const double loss : losses) EXPECT_TRUE(loss > 0 && loss < 10) << loss;
    // What was saved is what was evaluated.
    config.sync = {};
    World::run_threads(1, [&](World& world) {
      const Split data = open_dataset(data_options(config));
      StageTrainer alone(config, world, data);
      load_checkpoint(newest_checkpoint(folder / "run"), saved_parameters(alone.model()), alone.store(), true);
      StepReport report;
      alone.evaluate(report);
      EXPECT_NEAR(*report.eval_loss / *result.eval_loss, 1, 1e-9);
    });
  }
}

// Runs a job whole, and again from its checkpoint of step 10: both must end with the same numbers.
void expect_exact_resume(const RunConfig& configured, int ranks) {
  const TemporaryFolder folder;
  auto config = configured;
  config.run_dir = (folder / "whole").string();
  config.checkpoint.every = 10;  // in the middle of a round
  config.checkpoint.keep = 10;
  const auto whole = run_whole(config, {}, ranks);
  std::filesystem::copy(folder / "whole", folder / "again", std::filesystem::copy_options::recursive);
  for (const char* later : {"step-20", "step-24"}) std::filesystem::remove_all(folder / "again/checkpoints" / later);
  config.run_dir = (folder / "again").string();
  RunOptions options;
  options.resume = true;
  options.resume_from = folder / "again";
  const auto again = run_whole(config, options, ranks);
  EXPECT_EQ(again.loss, whole.loss);
  EXPECT_EQ(*again.eval_loss, *whole.eval_loss);
}

// Kinds whose steps depend on nothing but the steps before.
TEST(Loose, AnInterruptedRunGoesOnExactly) {
  const Case cases[] = {every_kind[2],
                        every_kind[3],
                        {"stale", with(SyncKind::stale, [](auto& sync) { sync.staleness = 0; })},
                        {"server", with(SyncKind::server, [](auto& sync) { sync.staleness = 0; })}};
  for (size_t i = 0; i < std::size(cases) + 3; ++i) {
    const auto& [name, sync] = cases[i % std::size(cases)];
    const int stages = i < std::size(cases) ? 1 : 2, ranks = stages == 1 ? 3 : 4;
    SCOPED_TRACE(fmt::format("{}, {} stage(s)", name, stages));
    auto config = run_config(sync, "");
    config.parallel.pipe = stages;
    expect_exact_resume(config, ranks);
  }
}

// What codecs leave out, and what chance rounds, is the same in a resumed run.
TEST(Codecs, AnInterruptedRunGoesOnExactly) {
  const Case kinds[] = {{"allreduce", with(SyncKind::allreduce, [](auto&) {})},
                        {"stale", with(SyncKind::stale, [](auto& sync) { sync.staleness = 0; })},
                        every_kind[2],
                        every_kind[3]};
  const CodecKind codecs[] = {CodecKind::int8,      CodecKind::int4,     CodecKind::fp16,
                              CodecKind::bf16,      CodecKind::sign,     CodecKind::top_k,
                              CodecKind::threshold, CodecKind::low_rank, CodecKind::bound};
  for (const auto codec : codecs) {
    const bool rounds = codec == CodecKind::int8 || codec == CodecKind::int4;
    for (const auto rounding : {Rounding::nearest, Rounding::stochastic}) {
      if (rounding == Rounding::stochastic && !rounds) continue;
      for (const auto& [name, sync] : kinds) {
        SCOPED_TRACE(
            fmt::format("codec {}, rounding {}, {}", static_cast<int>(codec), static_cast<int>(rounding), name));
        auto config = run_config(sync, "");
        config.train.precision = Precision::fp32;
        config.sync.codec.kind = codec;
        config.sync.codec.rounding = rounding;
        config.sync.codec.keep = 0.1;
        expect_exact_resume(config, 2);
      }
    }
  }
}

// Replicas are compared only where they promise to be equal, also when nothing has just been evaluated or saved.
TEST(Loose, MeetingsFindNoFaultWhereThereIsNone) {
  for (const auto& [name, sync] : every_kind) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    auto config = run_config(sync, folder / "run");
    config.data.validation = 0;
    config.train.eval_every = 1;
    config.checkpoint.every = 0;
    config.watchdog.replicas = 1;
    EXPECT_EQ(run_whole(config, {}, 3).steps, 24);
  }
}

// Other numbers of ranks go on from what the replicas agreed on.
TEST(Loose, OtherRanksGoOnFromWhatWasAgreed) {
  for (const auto& [name, sync] : every_kind) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    auto config = run_config(sync, folder / "run");
    run_whole(config, {}, 3);
    config.train.steps = 32;
    RunOptions options;
    options.resume = true;
    options.resume_from = folder / "run";
    const auto again = run_whole(config, options, 2);
    EXPECT_EQ(again.steps, 32);
    EXPECT_TRUE(std::isfinite(again.loss));
  }
}

}  // namespace
}  // namespace trireme
