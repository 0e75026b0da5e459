// The settings that say how the work is split over ranks, and which of them go with which.
#pragma once

#include "trireme/spec/config.h"

namespace trireme {

void describe_parallel(Settings& settings, ParallelConfig& parallel, MemoryConfig& memory);
void check_parallel(const RunConfig& config, const Settings& settings);

}  // namespace trireme
