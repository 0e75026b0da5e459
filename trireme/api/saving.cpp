#include "trireme/api/saving.h"

#include <ATen/ATen.h>

#include <cstring>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/folder_lock.h"
#include "trireme/device/foreign_error.h"
#include "trireme/parallel/replica_check.h"
#include "trireme/train/checkpoint.h"

namespace trireme {

namespace {

constexpr const char* left_out_prefix = "updates_left_out.";  // and the parameter's name

// What the optimizer has beside its state and its number of updates.
OwnState own_state(const ModuleOptimizer& optimizer) {
  OwnState state;
  for (const auto& [name, count] : optimizer.left_out())
    state[left_out_prefix + name] = at::full({1}, count, at::kLong);
  return state;
}

std::map<std::string, int64_t> left_out_of(const OwnState& state) {
  std::map<std::string, int64_t> left_out;
  for (const auto& [name, count] : state) {
    if (name.starts_with(left_out_prefix)) left_out[name.substr(std::strlen(left_out_prefix))] = count.item<int64_t>();
  }
  return left_out;
}

}  // namespace

void save(const std::filesystem::path& folder, ReplicatedModule& model, const ModuleOptimizer& optimizer) {
  auto& world = model.world();
  model.follow_module();
  std::string problem;  // the first rank's, which all must hear of
  if (world.rank() == 0) {
    try {
      auto lock = FolderLock::take(folder);
      lock.keep();
      CheckpointWriter writer(folder, CheckpointConfig{}, "", world.recorder());
      Progression progression;
      progression.step = model.steps();
      progression.updates = optimizer.updates();
      writer.keep_own(own_state(optimizer));
      writer.save(model.parameters(), model.store(), progression, model.buffers());
      writer.finish(1e9);
      problem = writer.failure().value_or("");
    } catch (...) {
      problem = explain(std::current_exception()).error.what();
    }
  }
  problem = world.from_first(problem, "save");
  if (!problem.empty())
    fail("the checkpoint of step {} in {} was not saved: {}", model.steps(), folder.string(), problem);
}

int64_t load(const std::filesystem::path& folder, ReplicatedModule& model, ModuleOptimizer& optimizer) {
  const auto info = newest_checkpoint(folder);
  model.follow_module();
  load_checkpoint(info, model.parameters(), model.store(), /*with_optimizer=*/true, /*whole_model=*/true,
                  model.buffers());
  model.set_steps(info.progression.step);
  optimizer.set_updates(info.progression.updates, left_out_of(read_own_state(info, 0, /*ranks=*/1)));
  auto& communicator = model.world().communicator();
  check_same_parameters(model.parameters(), communicator);
  return info.progression.step;
}

}  // namespace trireme
