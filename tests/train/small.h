// Small runs for the tests of the train room: models of a few thousand parameters, ranks as threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/world.h"
#include "trireme/data/dataset.h"
#include "trireme/train/run.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

inline RunConfig small_gpt() {
  RunConfig config;
  config.model = {
      .kind = ModelKind::gpt, .layers = 2, .width = 16, .heads = 2, .context = 8, .vocab = 20, .dropout = 0.1};
  config.data = {.kind = DataKind::synthetic, .validation = 0.2, .samples = 40};
  config.train.steps = 10;
  config.train.batch = 7;  // divides over no number of ranks but one
  config.train.precision = Precision::fp64;
  config.train.threads = 1;
  config.train.eval_batches = 1;
  config.optimizer.lr = 0.01;
  config.optimizer.warmup = 3;
  config.log.tensorboard = false;
  return config;
}

// Grouped queries, a head of its own, and no dropout: torch's fused attention.
inline RunConfig small_llama() {
  RunConfig config = small_gpt();
  config.model = {.kind = ModelKind::llama,
                  .layers = 2,
                  .width = 16,
                  .heads = 4,
                  .context = 8,
                  .vocab = 20,
                  .kv_heads = 2,
                  .hidden = 24};
  return config;
}

inline RunConfig small_mlp() {
  RunConfig config = small_gpt();
  config.model = {.kind = ModelKind::mlp, .layers = 2, .width = 16, .inputs = 6, .classes = 4};
  config.optimizer.kind = OptimizerKind::sgd;
  config.optimizer.nesterov = true;
  config.optimizer.lr = 0.1;
  return config;
}

inline RunConfig small_images(ModelKind kind, int64_t image = 16) {
  RunConfig config = small_gpt();
  config.model = {.kind = kind, .dropout = 0.1, .classes = 4, .image = image};
  config.train.batch = 6;
  config.data.samples = 30;
  config.optimizer.kind = OptimizerKind::sgd;
  config.optimizer.lr = 0.01;
  config.optimizer.warmup = 0;
  config.optimizer.schedule = LrSchedule::constant;
  return config;
}

// All masters behind each other, in the model's order: what the law compares.
inline at::Tensor parameters_of(StageTrainer& trainer) {
  c10::NoGradGuard no_grad;
  std::vector<at::Tensor> pieces;
  for (const auto& parameter : trainer.model().parameters()) {
    for (const auto& bucket : trainer.store().buckets()) {
      for (const auto& stored : bucket.parameters) {
        if (stored.parameter == parameter)
          pieces.push_back(ParameterStore::piece(bucket.master, stored).reshape({-1}).clone());
      }
    }
  }
  return pieces.empty() ? at::empty({0}, at::kDouble) : at::cat(pieces);  // a stage may have nothing to train
}

// What a run did, as rank 0 saw it.
struct Outcome {
  std::vector<StepReport> reports;
  std::vector<at::Tensor> parameters;         // at the end, of every rank
  std::map<std::string, at::Tensor> by_name;  // the whole model's, whichever stages hold them
  std::optional<double> evaluation, accuracy;
  Progression progression;

  std::vector<double> losses() const {
    std::vector<double> values;
    for (const auto& report : reports) values.push_back(report.loss);
    return values;
  }
};

// Steps through a run; `before_step`, where given, is called on each rank before each step.
using BeforeStep = std::function<void(StageTrainer&, World&, int64_t step)>;

inline Outcome run_trainer(const RunConfig& config, int ranks, int64_t steps, const BeforeStep& before_step = {}) {
  at::set_num_threads(1);
  const Split data = open_dataset(data_options(config));
  Outcome outcome;
  std::mutex mutex;
  outcome.parameters.resize(static_cast<size_t>(ranks));
  World::run_threads(ranks, [&](World& world) {
    at::set_num_threads(1);  // OpenMP keeps this number for each thread
    StageTrainer trainer(config, world, data);
    std::vector<StepReport> reports;
    for (int64_t step = 1; step <= steps; ++step) {
      if (before_step) before_step(trainer, world, step);
      const auto report = trainer.step(false);
      trainer.check_finite(report);
      if (report.step > 0) reports.push_back(report);  // 0: totals come late, and there are none yet
    }
    if (trainer.settles()) reports.push_back(trainer.step(false));
    StepReport evaluated;
    trainer.evaluate(evaluated);
    outcome.parameters[static_cast<size_t>(world.rank())] = parameters_of(trainer);
    {
      std::lock_guard lock(mutex);
      for (const auto& bucket : trainer.store().buckets()) {
        for (const auto& stored : bucket.parameters) {
          const auto piece = ParameterStore::piece(bucket.master, stored).clone();
          const auto [entry, fresh] = outcome.by_name.emplace(stored.parameter->name, piece);
          // An average that came late is added to what each has moved by, so the last bits differ.
          const bool same =
              config.sync.overlap ? at::allclose(entry->second, piece, 1e-12, 1e-12) : at::equal(entry->second, piece);
          EXPECT_TRUE(fresh || same) << stored.parameter->name << " differs between ranks";
        }
      }
    }
    if (world.rank() == 0) {
      outcome.reports = reports;
      outcome.evaluation = evaluated.eval_loss;
      outcome.accuracy = evaluated.eval_accuracy;
      outcome.progression = trainer.progression();
    }
  });
  return outcome;
}

// A whole run with its folder, as the program makes it, on ranks that are threads.
inline RunResult run_whole(const RunConfig& config, const RunOptions& options = {}, int ranks = 1) {
  RunResult result;
  World::run_threads(ranks, [&](World& world) {
    RunOptions quiet = options;
    quiet.quiet = true;
    const auto mine = train(config, world, quiet);
    if (world.rank() == 0) result = mine;
  });
  return result;
}

// All that a checkpoint holds of weights and of the optimizer's state.
inline std::string bytes_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.rfind("model", 0) == 0 || name.rfind("optimizer", 0) == 0) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    bytes += std::string(std::istreambuf_iterator<char>(file), {});
  }
  return bytes;
}

// What a run of one step is refused with.
inline std::string refusal(const RunConfig& config, int ranks) {
  try {
    run_trainer(config, ranks, 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_status(), 2);
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace trireme
