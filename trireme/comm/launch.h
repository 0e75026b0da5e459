// Starts the ranks of a job on this host and looks after them: passes a user's wish to stop on to all of them, names
// the rank that dies, and leaves nobody behind.
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
};

// Runs the job to its end; the exit status for the shell.
int launch(const LaunchOptions& options);

// For the first rank of a job that our launcher started: where the run keeps its log, so that what the launcher says
// stands there too. The launcher knows no run; it finds this beside the board, and takes it away.
void share_log(const Board& board, const std::filesystem::path& log);

}  // namespace trireme
