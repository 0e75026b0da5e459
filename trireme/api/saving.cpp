#include "trireme/api/saving.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/parallel/replica_check.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

void save(const std::filesystem::path& folder, ReplicatedModule& model, const ModuleOptimizer& optimizer) {
  auto& world = model.world();
  const auto saved = at::zeros({1}, at::kLong);
  if (world.rank() == 0) {
    CheckpointConfig config;
    CheckpointWriter writer(folder, config, "", world.recorder());
    Progression progression;
    progression.step = model.steps();
    progression.updates = optimizer.updates();
    writer.save(model.parameters(), model.store(), progression);
    writer.finish(1e9);
    saved.fill_(writer.last() ? 1 : 0);
  }
  auto& communicator = world.communicator();
  communicator.now([&] { return communicator.broadcast(saved, 0, "saved"); });
  if (saved.item<int64_t>() == 0) fail("the checkpoint of step {} in {} was not saved", model.steps(), folder.string());
}

int64_t load(const std::filesystem::path& folder, ReplicatedModule& model, ModuleOptimizer& optimizer) {
  const auto info = newest_checkpoint(folder);
  load_checkpoint(info, model.parameters(), model.store(), /*with_optimizer=*/true);
  model.set_steps(info.progression.step);
  optimizer.set_updates(info.progression.updates);
  auto& communicator = model.world().communicator();
  check_same_parameters(model.parameters(), communicator);
  return info.progression.step;
}

}  // namespace trireme
