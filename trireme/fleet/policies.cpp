#include "trireme/fleet/policies.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::fleet {

namespace {

const std::vector<PolicyEntry>& entries() {
  static const std::vector<PolicyEntry> table = {
      max_min_policy(),
      max_min_agnostic_policy(),
      max_min_packed_policy(),
      water_filling_policy(),
      water_filling_agnostic_policy(),
      water_filling_packed_policy(),
      finish_time_fairness_policy(),
      finish_time_fairness_agnostic_policy(),
      finish_time_fairness_packed_policy(),
      makespan_policy(),
      makespan_agnostic_policy(),
      makespan_packed_policy(),
      max_throughput_policy(),
      max_throughput_agnostic_policy(),
      max_throughput_packed_policy(),
      min_cost_policy(),
      min_cost_agnostic_policy(),
      min_cost_packed_policy(),
      min_cost_deadlines_policy(),
      min_cost_deadlines_packed_policy(),
      strategy_proof_policy(),
      strategy_proof_agnostic_policy(),
      isolated_policy(),
      fifo_policy(),
      fifo_perf_policy(),
      fifo_packed_policy(),
      shortest_job_first_policy(),
      two_dimensional_las_policy(),
      allox_policy(),
      gandiva_policy(),
  };
  return table;
}

const PolicyEntry& entry(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& candidate : entries()) {
    const auto& info = candidate.info;
    if (info.name == name || std::find(info.aliases.begin(), info.aliases.end(), name) != info.aliases.end()) {
      return candidate;
    }
    names.push_back(info.name);
    names.insert(names.end(), info.aliases.begin(), info.aliases.end());
  }
  const auto meant = nearest(std::string(name), names);
  refuse("unknown policy {}{} (trireme fleet policies lists them)", name,
         meant.empty() ? "" : fmt::format(", did you mean {}?", meant));
}

}  // namespace

const std::vector<PolicyInfo>& policies() {
  static const std::vector<PolicyInfo> infos = [] {
    std::vector<PolicyInfo> all;
    for (const auto& entry : entries()) all.push_back(entry.info);
    return all;
  }();
  return infos;
}

std::unique_ptr<Policy> make_policy(std::string_view name, uint64_t seed) { return entry(name).make(seed); }

const PolicyInfo& policy_info(std::string_view name) { return entry(name).info; }

size_t ClusterView::find_pair(size_t a, size_t b) const {
  const std::pair<int, int> wanted(static_cast<int>(std::min(a, b)), static_cast<int>(std::max(a, b)));
  const auto place = std::lower_bound(pairs.begin(), pairs.end(), wanted, [](const PolicyPair& pair, const auto& key) {
    return std::pair(pair.first, pair.second) < key;
  });
  const bool found = place != pairs.end() && std::pair(place->first, place->second) == wanted;
  return found ? static_cast<size_t>(place - pairs.begin()) : pairs.size();
}

}  // namespace trireme::fleet
