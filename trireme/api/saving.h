// Checkpoints of a wrapped module, in the format of the program's own (FOLDER/checkpoints/step-N): model.safetensors
// under the module's names, optimizer.safetensors, and a manifest with checksums. They load on any number of ranks.
#pragma once

#include <filesystem>

#include "trireme/api/optimizers.h"

namespace trireme {

// Rank 0 writes; all ranks call it, and return when the files are safe, or with the reason why they are not.
void save(const std::filesystem::path& folder, ReplicatedModule& model, const ModuleOptimizer& optimizer);

// Takes up the newest checkpoint of the folder; returns how many steps had been done. Collective.
int64_t load(const std::filesystem::path& folder, ReplicatedModule& model, ModuleOptimizer& optimizer);

}  // namespace trireme
