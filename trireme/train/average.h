// `trireme average`: checkpoints of one model become one whose every tensor is their mean, Σ wᵢ·xᵢ / Σ wᵢ in fp64:
// parameters, and what BatchNorms remember. Several runs of one recipe, or the last checkpoints of one run, often lie
// around a better model than each (model soups, stochastic weight averaging).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace trireme {

struct Averaged {
  std::filesystem::path to, checkpoint;
  std::vector<std::filesystem::path> from;
  std::vector<double> weights;
  int64_t step = 0, tensors = 0, parameters = 0;

  std::string brief() const;
  nlohmann::ordered_json json() const;
};

// Each of `from` is a checkpoint, or a run's folder, which means its newest. `weights` is empty (equal ones) or as
// long. `to` must not exist, or be empty: it becomes a run's folder with config.yaml of the first and one checkpoint,
// without optimizer state. Memory holds one tensor of the result and one of a checkpoint at a time.
Averaged average(const std::vector<std::filesystem::path>& from, const std::vector<double>& weights,
                 const std::filesystem::path& to);

}  // namespace trireme
