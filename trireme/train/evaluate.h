// `trireme evaluate`: what trained models say of held-out samples, each by itself and all together. An ensemble's
// answer is the mean of its members' probabilities: p = 1/K Σ softmax(scoresₖ), its loss −log p of the target.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Evaluated {
  std::string checkpoint;  // or "ensemble of K"
  int64_t step = 0;
  double loss = 0;
  std::optional<double> accuracy;  // of classifiers
};

struct Evaluation {
  int64_t samples = 0;
  std::vector<Evaluated> models;
  std::optional<Evaluated> ensemble;  // of several models

  std::string brief() const;
  nlohmann::ordered_json json() const;
};

// The samples are those that the run of the first model held out, with `overrides` ("data.path=other.bin") to its
// settings; so many of them as it evaluated. A single checkpoint gets the numbers that its run reported.
Evaluation evaluate(const std::vector<std::filesystem::path>& from, const std::vector<std::string>& overrides);

}  // namespace trireme
