// The settings that say how the work is split over ranks, and which of them go with which.
#pragma once

#include "trireme/spec/config.h"

namespace trireme {

void describe_parallel(Settings& settings, ParallelConfig& parallel);
void describe_memory(Settings& settings, MemoryConfig& memory);
// Single settings of the sections train and memory, which plans decide too.
void describe_microbatch(Settings& settings, TrainConfig& train);
void describe_activations(Settings& settings, MemoryConfig& memory);
void check_parallel(const RunConfig& config, const Settings& settings);

}  // namespace trireme
