// `trireme sweep`: a search over settings as parallelism. Each point is a run of its own, a `trireme train` of real
// processes in SWEEP/point-K; as many run at once as the ranks allow, each on its share of the cores.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/train/sweep_result.h"

namespace trireme {

struct SweepOptions {
  std::vector<std::filesystem::path> files;  // configurations that all points share,
  std::vector<std::string> overrides;        // and settings over them
  std::vector<std::string> grid, random;     // axes, as SweepAxis reads them: of one kind
  int64_t trials = 0;                        // of a random search
  uint64_t seed = 1;
  int ranks = 1, ranks_per_run = 1;
  std::string best = "eval_loss";
  std::filesystem::path folder;
  bool keep_all = false;  // checkpoints of all points, not only the best one's
  bool resume = false;
  bool quiet = false;  // no progress
};

// Runs all points but those that are done already. A point that fails is recorded with its error; ctrl-C lets the runs
// save, and a resumed sweep goes on with them. Refuses wrong settings before anything starts.
SweepResult sweep(const SweepOptions& options);

}  // namespace trireme
