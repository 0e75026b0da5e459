// Writes random clusters and what policies answer for them, one JSON object a line, for solvers that we did not write:
//
//   fleet_instances COUNT
#include <cstdlib>
#include <iostream>

#include <nlohmann/json.hpp>

#include "tests/fleet/random_cluster.h"

namespace trireme::fleet {
namespace {

nlohmann::json to_json(const ClusterView& view) {
  nlohmann::json jobs = nlohmann::json::array(), types = nlohmann::json::array(), pairs = nlohmann::json::array();
  for (const auto& job : view.jobs) {
    jobs.push_back({{"scale", job.scale},
                    {"weight", job.weight},
                    {"steps_left", job.steps_left},
                    {"age_s", job.age_s},
                    {"isolated_s", job.isolated_s}});
  }
  for (const auto& type : view.types) types.push_back({{"devices", type.devices}, {"cost", type.cost_per_hour}});
  for (const auto& pair : view.pairs) pairs.push_back({pair.first, pair.second});
  return {{"jobs", jobs},
          {"types", types},
          {"pairs", pairs},
          {"throughput", view.throughput},
          {"first", view.throughput_first},
          {"second", view.throughput_second}};
}

void write(int count) {
  const char* const names[] = {"max-min", "makespan", "finish-time-fairness", "max-throughput", "min-cost"};
  for (int i = 0; i < count; ++i) {
    RandomCluster random(static_cast<uint64_t>(i));
    const bool pairs = i % 4 == 0;
    const auto view = pairs ? random.view(10, 4, true) : random.view(60, 8, false);
    auto line = to_json(view);
    for (const std::string name : names) {
      const bool packed = pairs && name != "min-cost";
      const auto allocation = make_policy(packed ? name + "-packed" : name, 0)->allocate(packed ? view : [&] {
        auto alone = view;
        alone.pairs.clear();
        alone.throughput_first.clear();
        alone.throughput_second.clear();
        return alone;
      }());
      line["answers"][name] = {{"alone", allocation.alone}, {"paired", allocation.paired}};
    }
    std::cout << line << '\n';
  }
}

}  // namespace
}  // namespace trireme::fleet

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fleet_instances COUNT\n";
    return 2;
  }
  trireme::fleet::write(std::atoi(argv[1]));
}
