#include "trireme/fleet/policies/greedy.h"

namespace trireme::fleet {

Allocation allocate_in_order(const ClusterView& view, const std::vector<size_t>& order) {
  const size_t types = view.types.size();
  Allocation allocation;
  allocation.alone.resize(view.jobs.size() * types, 0);
  std::vector<int> available;
  int left = 0;
  for (const auto& type : view.types) {
    available.push_back(type.devices);
    left += type.devices;
  }
  for (size_t m : order) {
    if (left == 0) break;
    const int scale = view.jobs[m].scale;
    const double* rates = view.throughput.data() + m * types;
    size_t best = types;
    for (size_t j = 0; j < types; ++j) {
      if (available[j] < scale || !(rates[j] > 0)) continue;
      if (best == types || rates[j] > rates[best]) best = j;
    }
    if (best == types) continue;
    allocation.alone[m * types + best] = 1;
    available[best] -= scale;
    left -= scale;
  }
  return allocation;
}

}  // namespace trireme::fleet
