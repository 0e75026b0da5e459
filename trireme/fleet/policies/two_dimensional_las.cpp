// Least attained service in two dimensions, devices × time, after Tiresias (NSDI 2019): jobs fall from queue to queue
// as they receive service, and inside a queue the oldest comes first, so that nobody must say how long a job will take
// and jobs of equal service do not take turns for ever. A job that has waited very long is put back into the first
// queue.
#include <algorithm>
#include <numeric>

#include "trireme/fleet/policies.h"
#include "trireme/fleet/policies/greedy.h"

namespace trireme::fleet {

namespace {

// Device-seconds at which a job falls into the next queue: an hour and ten hours of one device.
constexpr double thresholds_s[] = {3600, 36000};
// It starves when its age exceeds so many times the time that it ran for, and a day.
constexpr double starving_ratio = 50;
constexpr double starving_s = 86400;

int queue_of(const PolicyJob& job) {
  const double ran_s = job.service_s / job.scale;
  if (job.age_s > starving_s && job.age_s > starving_ratio * ran_s) return 0;
  int queue = 0;
  for (double threshold_s : thresholds_s) queue += job.service_s >= threshold_s;
  return queue;
}

class TwoDimensionalLas final : public Policy {
 public:
  Allocation allocate(const ClusterView& view) override {
    std::vector<int> queue(view.jobs.size());
    for (size_t m = 0; m < queue.size(); ++m) queue[m] = queue_of(view.jobs[m]);
    std::vector<size_t> order(view.jobs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return queue[a] < queue[b]; });
    return allocate_in_order(view, order);
  }
};

}  // namespace

PolicyEntry two_dimensional_las_policy() {
  return {{.name = "2d-las",
           .aliases = {"tiresias"},
           .objective = "the least device-time received first, in three queues; it need not know durations",
           .formula = "by queue of s_m · (time run), at 1 h and 10 h of one device; inside a queue the oldest first",
           .knows_speeds = true,
           .every_round = true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<TwoDimensionalLas>(); }};
}

}  // namespace trireme::fleet
