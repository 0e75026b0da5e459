// What a model costs before anything is run: the work, depth and bytes of every layer, and the bytes that each way of
// splitting it over ranks would send in a step.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

struct Analysis {
  LayerTable table;
  std::string name;   // of the model, for the picture's title
  int64_t batch = 1;  // samples of a step
  std::vector<int> ranks{2, 4, 8};

  // What splitting over so many ranks sends.
  struct Split {
    int ranks = 0;
    double data_bytes = 0;        // by each rank: all-reduce of the gradients, 2 (p-1)/p of them
    std::vector<int64_t> begins;  // first layers of as many stages of about equal work; none with too few layers
    double pipe_bytes = 0;        // over the widest border between these: activations there and gradients back
    double pipe_imbalance = 0;    // work of the largest stage in that of an equal share
  };

  double work() const;  // operations of a step
  double depth()
      const;  // longest chain of dependent ones, forward and backward: work / depth is what could run at once
  std::vector<Split> splits() const;

  std::string full() const;
  nlohmann::ordered_json json() const;
  std::string svg() const;  // a row a layer, bars for work, parameters, what is kept, and parallelism
};

// `vocab` as of model_table().
Analysis analyze(const RunConfig& config, int64_t vocab);

}  // namespace trireme
