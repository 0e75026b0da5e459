// The published throughputs and traces, and what the published simulator made of them (tests/fleet/data).
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "trireme/fleet/simulation.h"

namespace trireme::fleet {

inline std::string data_file(const std::string& name) {
  return std::string(TRIREME_SOURCE "/tests/fleet/data/") + name;
}

inline const Throughputs& published_throughputs() {
  static const Throughputs table = read_throughputs(data_file("simulation_throughputs.json"));
  return table;
}

inline nlohmann::json read_json(const std::string& name) {
  std::ifstream file(data_file(name));
  return nlohmann::json::parse(file);
}

// "12:12:12" or "12-12-12", in the order of the published names.
inline Cluster published_cluster(std::string counts) {
  for (char& c : counts) c = c == '-' ? ':' : c;
  const auto first = counts.find(':'), second = counts.find(':', first + 1);
  return parse_cluster("v100=" + counts.substr(0, first) + ",p100=" + counts.substr(first + 1, second - first - 1) +
                       ",k80=" + counts.substr(second + 1));
}

inline SimulationOptions as_reference(const std::string& policy, uint64_t seed = 0) {
  SimulationOptions options;
  options.scheduler.policy = policy;
  options.scheduler.reference = true;
  options.scheduler.seed = seed;
  return options;
}

}  // namespace trireme::fleet
