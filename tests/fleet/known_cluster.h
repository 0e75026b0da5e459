// Small clusters for tests of policies whose answers are known by hand.
#pragma once

#include <string>
#include <vector>

#include "tests/fleet/random_cluster.h"

namespace trireme::fleet {

// Jobs of one device with these speeds on each type.
inline ClusterView cluster(const std::vector<int>& devices, const std::vector<std::vector<double>>& speeds) {
  ClusterView view;
  for (int count : devices) view.types.push_back({"type" + std::to_string(view.types.size()), count, 1});
  for (const auto& row : speeds) {
    PolicyJob job;
    job.id = static_cast<int64_t>(view.jobs.size());
    job.steps_left = 1000;
    view.jobs.push_back(job);
    view.throughput.insert(view.throughput.end(), row.begin(), row.end());
  }
  return view;
}

inline std::vector<double> speeds_by(const std::string& policy, const ClusterView& view) {
  return speeds_under(view, make_policy(policy, 0)->allocate(view));
}

}  // namespace trireme::fleet
