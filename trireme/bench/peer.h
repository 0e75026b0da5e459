// What the benchmarks of training share: the same weights and batches for both sides, runs of our own program and of
// the peer's script, and the comparison of what they computed, which comes before the comparison of how long it took.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/spec/config.h"

namespace trireme {

struct Measured {
  double step_s = 0;
  std::vector<double> losses;
  std::string codec;  // ours, where one was asked for
  // By step, of the steps between: the share of the time in which stages had nothing to do, and what it would be if the
  // stage with the most to do in that step had never waited.
  std::vector<double> idle, unequal;
  double sent_bytes = 0;  // a step: by rank 0 with a codec; by the host of rank 0 where a peer counts
};

// Initial parameters and the first `batches` batches of a run, for the peer.
void write_inputs(const RunConfig& config, int64_t batches, const std::filesystem::path& path);

// A new folder of this user alone, for as long as this lives.
struct ScratchFolder {
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path path;
};

// Runs a command whose output is one JSON object.
nlohmann::json run_command(const std::vector<std::string>& words);

// `trireme train` with these settings; `run_dir` is removed afterwards unless it shall be kept.
// With `launcher`, words that start a command on all ranks, these start it; otherwise it starts its ranks itself.
Measured run_ours(int ranks, const std::vector<std::string>& overrides, const std::filesystem::path& run_dir,
                  bool keep = false, const std::vector<std::string>& launcher = {});

// Fails unless the first `steps` losses agree.
void compare_losses(const std::string& name, const Measured& ours, const Measured& theirs, int64_t steps,
                    double tolerance = 1e-4);

}  // namespace trireme
