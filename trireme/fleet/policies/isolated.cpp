// Everybody gets an n-th of the cluster, as if each had bought it: X_mj = W_j / (n s_m), the row divided by its sum
// where that is above 1.
#include <algorithm>

#include "trireme/fleet/policies.h"

namespace trireme::fleet {

namespace {

class Isolated final : public Policy {
 public:
  Allocation allocate(const ClusterView& view) override {
    const size_t types = view.types.size();
    Allocation allocation;
    allocation.alone.resize(view.jobs.size() * types);
    const auto count = static_cast<double>(view.jobs.size());
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      double* shares = allocation.alone.data() + m * types;
      double sum = 0;
      for (size_t j = 0; j < types; ++j) {
        shares[j] = view.types[j].devices / count / view.jobs[m].scale;
        sum += shares[j];
      }
      for (size_t j = 0; j < types; ++j) shares[j] /= std::max(1.0, sum);
    }
    return allocation;
  }
};

}  // namespace

PolicyEntry isolated_policy() {
  return {{.name = "isolated",
           .aliases = {},
           .objective = "split the cluster into equal parts, one a job",
           .formula = "X_mj = W_j / (n s_m), rows scaled to at most 1",
           .shuffles_types = true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<Isolated>(); }};
}

}  // namespace trireme::fleet
