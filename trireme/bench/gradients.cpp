#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <filesystem>

#include "trireme/comm/world.h"
#include "trireme/data/dataset.h"
#include "trireme/bench/codec.h"
#include "trireme/train/run.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

namespace {

// The default model; on the default text where that is installed.
RunConfig small_run() {
  RunConfig config;
  config.train.steps = 100000;
  config.train.batch = 8;
  config.train.eval_batches = 0;
  config.data.validation = 0;
  config.checkpoint.every = 0;
  config.log.tensorboard = false;
  if (!std::filesystem::exists(config.data.path)) config.data.kind = DataKind::synthetic;
  return config;
}

// Copies a step's gradients behind those that are there.
void take(const ParameterStore& store, int64_t& filled, BenchGradients& found) {
  for (const auto& bucket : store.buckets()) {
    const int64_t count = std::min(bucket.elements, found.values.numel() - filled);
    found.values.narrow(0, filled, count).copy_(bucket.gradients.narrow(0, 0, count));
    for (const auto& stored : bucket.parameters) {
      const auto& shape = stored.parameter->value.sizes();
      if (shape.size() != 2 || stored.offset + shape[0] * shape[1] > count) continue;
      found.matrices.push_back({filled + stored.offset, shape[0], shape[1]});
    }
    filled += count;
  }
}

}  // namespace

BenchGradients real_gradients(int64_t count) {
  constexpr int64_t first_steps = 5;  // of which gradients are like no others
  const auto config = small_run();
  const Split data = open_dataset(data_options(config));
  BenchGradients found{at::empty({count}, at::kFloat), {}, ""};
  World::run_threads(1, [&](World& world) {
    StageTrainer trainer(config, world, data);
    int64_t filled = 0, steps = 0;
    while (filled < count) {
      trainer.step(false);
      c10::NoGradGuard no_grad;
      if (++steps > first_steps) take(trainer.store(), filled, found);
    }
    found.source = trainer.brief() + (config.data.kind == DataKind::text ? ", text" : ", made-up data");
  });
  return found;
}

}  // namespace trireme
