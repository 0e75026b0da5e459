#include "trireme/api/saving.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/folder_lock.h"
#include "trireme/parallel/replica_check.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

void save(const std::filesystem::path& folder, ReplicatedModule& model, const ModuleOptimizer& optimizer) {
  auto& world = model.world();
  std::string problem;  // the first rank's, which all must hear of
  if (world.rank() == 0) {
    try {
      auto lock = FolderLock::take(folder);
      lock.keep();
      CheckpointWriter writer(folder, CheckpointConfig{}, "", world.recorder());
      Progression progression;
      progression.step = model.steps();
      progression.updates = optimizer.updates();
      writer.save(model.parameters(), model.store(), progression, model.buffers());
      writer.finish(1e9);
      problem = writer.failure().value_or("");
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = world.from_first(problem, "save");
  if (!problem.empty())
    fail("the checkpoint of step {} in {} was not saved: {}", model.steps(), folder.string(), problem);
}

int64_t load(const std::filesystem::path& folder, ReplicatedModule& model, ModuleOptimizer& optimizer) {
  const auto info = newest_checkpoint(folder);
  load_checkpoint(info, model.parameters(), model.store(), /*with_optimizer=*/true, /*whole_model=*/true,
                  model.buffers());
  model.set_steps(info.progression.step);
  optimizer.set_updates(info.progression.updates);
  auto& communicator = model.world().communicator();
  check_same_parameters(model.parameters(), communicator);
  return info.progression.step;
}

}  // namespace trireme
