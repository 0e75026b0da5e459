// Starts the ranks of a job on this host and looks after them: passes a user's wish to stop or to pause (ctrl-Z) on to
// all of them, names the rank that dies, and leaves nobody behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/observe/board.h"

namespace trireme {

struct LaunchOptions {
  int ranks = 1;
  bool mpirun = false;           // through mpirun, so that the ranks can speak MPI
  std::string bind_to = "none";  // what mpirun binds each rank to
  int threads_per_rank = 1;
  std::vector<std::string> arguments;  // of this same program
  std::string advice;                  // said where the job ends: how to go on
};

// Runs the job to its end; the exit status for the shell.
int launch(const LaunchOptions& options);

}  // namespace trireme
