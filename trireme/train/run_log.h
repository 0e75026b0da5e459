// A run's log.txt: what was started, where and when, every line that the program says to people with its time, the
// result and the exit status.
#pragma once

#include <filesystem>

#include "trireme/comm/world.h"

namespace trireme {

// From here on what this rank says stands in the run's log too, as does what it has said before. Collective.
void open_run_log(World& world, const std::filesystem::path& run_dir);

// For a rank that ends the process: the last line, with the exit status. Where our own launcher stands behind the
// ranks, that has the last word.
void end_run_log(const World& world, int exit_status);

}  // namespace trireme
