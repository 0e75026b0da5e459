// The job with the least work left comes first: device-seconds on the type that is fastest for it. The best that can be
// done for the mean completion time when all is known, and merciless to long jobs.
#include <algorithm>
#include <numeric>

#include "trireme/fleet/policies.h"
#include "trireme/fleet/policies/greedy.h"

namespace trireme::fleet {

namespace {

class ShortestJobFirst final : public Policy {
 public:
  Allocation allocate(const ClusterView& view) override {
    const size_t types = view.types.size();
    std::vector<double> left(view.jobs.size());
    for (size_t m = 0; m < left.size(); ++m) {
      const auto begin = view.throughput.begin() + static_cast<int64_t>(m * types);
      const double fastest = *std::max_element(begin, begin + static_cast<int64_t>(types));
      left[m] = fastest > 0 ? view.jobs[m].steps_left / fastest * view.jobs[m].scale : 0;
    }
    std::vector<size_t> order(view.jobs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return left[a] < left[b]; });
    return allocate_in_order(view, order);
  }
};

}  // namespace

PolicyEntry shortest_job_first_policy() {
  return {{.name = "shortest-job-first",
           .aliases = {"sjf"},
           .objective = "the job with the least work left first, on the type that is fastest for it",
           .formula = "by s_m S_m / max_j T_mj, smallest first: X_mj = 1 on the fastest type with room",
           .knows_speeds = true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<ShortestJobFirst>(); }};
}

}  // namespace trireme::fleet
