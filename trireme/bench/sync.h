// `trireme bench sync`: every way to keep replicas together on one task, a small CNN on Fashion-MNIST: how well it
// ends, and how much of its speed is left when a rank is slow. Real runs of `trireme train` on real processes.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trireme {

struct SyncBenchOptions {
  std::vector<std::string> kinds;  // names as in known(); empty: all
  std::string part = "all";        // accuracy, straggler, or all
  int ranks = 4;
  int seeds = 3;
  int64_t steps = 1880;  // of the runs that are judged by accuracy: four epochs of batches of 128
  int64_t timed_steps = 300;
  double delay_ms = 200;
  std::string data;  // folder of images in the same files as Fashion-MNIST's; empty: where Debian's package puts those
  std::filesystem::path plot;  // loss against time, with and without a slow rank

  static std::vector<std::string> known();
};

// One kind's line. Accuracy in percent; speeds in samples a second.
struct SyncBenchLine {
  std::string kind, settings, slow_settings;
  std::vector<double> accuracy;      // by seed
  double undisturbed = 0, slow = 0;  // speeds
  double bound = 0;                  // of what is left of the speed: what nothing could exceed if ranks never waited
  std::string delays;

  nlohmann::ordered_json json() const;
  std::string brief() const;
};

void run_sync_bench(const SyncBenchOptions& options, const std::function<void(const SyncBenchLine&)>& each);

}  // namespace trireme
