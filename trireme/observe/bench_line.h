// One line of a benchmark: ours beside a peer's, measured in the same run, alternating.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct BenchLine {
  std::string bench;       // "train"
  std::string bench_case;  // "mlp 8x1024, 2 ranks"
  std::string unit = "s";
  bool smaller_is_better = true;
  std::vector<double> ours, peer;  // one value a repeat, ours[i] and peer[i] measured one after the other; or no peer
  std::string peer_name;
  std::optional<double> floor;  // what nothing could go below (or above), measured in the same runs
  nlohmann::ordered_json settings;
  std::string remark;  // what else was found, for people; machines find it in the settings

  double ratio() const;   // of the medians; above 1 where we are better
  double spread() const;  // half the distance between the largest and the smallest ratio of a pair
  nlohmann::ordered_json json() const;
  std::string brief() const;
};

}  // namespace trireme
