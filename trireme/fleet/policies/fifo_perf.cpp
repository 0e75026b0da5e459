// First come, first served, each on the type that is fastest for it, decided from scratch every time. With packing,
// jobs that found no devices join the one with which they run best, if both together gain enough.
#include <algorithm>

#include "trireme/fleet/policies.h"

namespace trireme::fleet {

namespace {

constexpr double packing_threshold = 1.5;  // normalised throughput that a pair must exceed

class FifoPerf final : public Policy {
 public:
  explicit FifoPerf(bool packs) : packs_(packs) {}

  Allocation allocate(const ClusterView& view) override {
    const size_t types = view.types.size();
    Allocation allocation;
    allocation.alone.resize(view.jobs.size() * types, 0);
    std::vector<int> available;
    int left = 0;
    for (const auto& type : view.types) {
      available.push_back(type.devices);
      left += type.devices;
    }
    std::vector<Placed> placed;
    size_t next = 0;
    for (; next < view.jobs.size() && left > 0; ++next) {
      const int scale = view.jobs[next].scale;
      const double* rates = view.throughput.data() + next * types;
      size_t best = types;
      for (size_t j = 0; j < types; ++j) {
        if (available[j] < scale || available[j] == 0) continue;
        if (!view.reference && !(rates[j] > 0)) continue;
        if (best == types || rates[j] > rates[best]) best = j;
      }
      if (best == types) {
        ++next;  // the published one takes it from the queue before it stops
        break;
      }
      if (!(rates[best] > 0)) continue;  // so the published one lets the next jump the queue
      allocation.alone[next * types + best] = 1;
      available[best] -= scale;
      left -= scale;
      placed.push_back({next, best});
    }
    if (packs_) pack(view, next, placed, allocation);
    return allocation;
  }

 private:
  struct Placed {
    size_t job, type;
  };

  static double gain(const ClusterView& view, size_t pair, size_t type) {
    const size_t types = view.types.size();
    const auto& [first, second] = view.pairs[pair];
    const auto alone = [&](int job) { return view.throughput[static_cast<size_t>(job) * types + type]; };
    double sum = 0;
    if (const double rate = view.throughput_first[pair * types + type]; rate > 0) sum += rate / alone(first);
    if (const double rate = view.throughput_second[pair * types + type]; rate > 0) sum += rate / alone(second);
    return sum;
  }

  static void pack(const ClusterView& view, size_t next, std::vector<Placed>& placed, Allocation& allocation) {
    const size_t types = view.types.size();
    allocation.paired.resize(view.pairs.size() * types, 0);
    for (; next < view.jobs.size(); ++next) {
      double best_gain = packing_threshold;
      size_t best = placed.size(), best_pair = 0;
      for (size_t i = 0; i < placed.size(); ++i) {
        const size_t pair = view.find_pair(placed[i].job, next);
        if (pair == view.pairs.size()) continue;
        if (const double sum = gain(view, pair, placed[i].type); sum > best_gain) {
          best_gain = sum;
          best = i;
          best_pair = pair;
        }
      }
      if (best == placed.size()) return;  // nobody jumps the queue
      allocation.alone[placed[best].job * types + placed[best].type] = 0;
      allocation.paired[best_pair * types + placed[best].type] = 1;
      placed.erase(placed.begin() + static_cast<int64_t>(best));
    }
  }

  bool packs_;
};

}  // namespace

PolicyEntry fifo_perf_policy() {
  return {{.name = "fifo-perf",
           .aliases = {"fifo_perf"},
           .objective = "first come, first served, each on the type that is fastest for it",
           .formula = "X_mj = 1 on argmax_j T_mj among types with s_m devices left, oldest first",
           .knows_speeds = true,
           .fills_gaps = false},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<FifoPerf>(false); }};
}

PolicyEntry fifo_packed_policy() {
  return {{.name = "fifo-packed",
           .aliases = {"fifo_packed"},
           .objective = "fifo-perf, and jobs that find no devices join one with which they run well",
           .formula = "as fifo-perf; a pair shares when its normalised throughput exceeds 1.5",
           .knows_speeds = true,
           .shares_devices = true,
           .fills_gaps = false},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<FifoPerf>(true); }};
}

}  // namespace trireme::fleet
