// First come, first served, blind to speeds: a random type among those with room, and there a job stays. With
// --reference it keeps the quirks of the published one, whose random choice never takes effect: a leaked loop variable
// always names the last type that has devices left, even when it has too few.
#include <algorithm>
#include <map>

#include "trireme/fleet/policies.h"
#include "trireme/fleet/python_random.h"

namespace trireme::fleet {

namespace {

Allocation by_type(const ClusterView& view, const std::map<int64_t, size_t>& type_of) {
  Allocation allocation;
  allocation.alone.resize(view.jobs.size() * view.types.size(), 0);
  for (size_t m = 0; m < view.jobs.size(); ++m) {
    if (const auto place = type_of.find(view.jobs[m].id); place != type_of.end()) {
      allocation.alone[m * view.types.size() + place->second] = 1;
    }
  }
  return allocation;
}

class Fifo final : public Policy {
 public:
  explicit Fifo(uint64_t seed) : random_(seed) {}

  Allocation allocate(const ClusterView& view) override {
    std::vector<int> available;
    for (const auto& type : view.types) available.push_back(type.devices);
    std::vector<size_t> queue;  // jobs without a type, oldest first
    std::map<int64_t, size_t> index_of;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      index_of[view.jobs[m].id] = m;
      if (!type_of_.contains(view.jobs[m].id)) queue.push_back(m);
    }
    if (view.reference) {
      const size_t next = replace_completed(view, index_of, queue, available);
      place_queue_as_published(view, queue, next, available);
    } else {
      std::erase_if(type_of_, [&](const auto& entry) { return !index_of.contains(entry.first); });
      for (const auto& [id, type] : type_of_) available[type] -= view.jobs[index_of.at(id)].scale;
      place_queue(view, queue, available);
    }
    return by_type(view, type_of_);
  }

 private:
  void place_queue(const ClusterView& view, const std::vector<size_t>& queue, std::vector<int>& available) {
    for (size_t m : queue) {
      std::vector<size_t> fitting;
      for (size_t j = 0; j < view.types.size(); ++j) {
        if (available[j] >= view.jobs[m].scale && view.throughput[m * view.types.size() + j] > 0) fitting.push_back(j);
      }
      if (fitting.empty()) return;  // nobody jumps the queue
      const size_t type = fitting[random_.below(fitting.size())];
      type_of_[view.jobs[m].id] = type;
      available[type] -= view.jobs[m].scale;
    }
  }

  // The head of the queue takes the type of each job that is gone, if it fits beside those that were looked at before.
  size_t replace_completed(const ClusterView& view, const std::map<int64_t, size_t>& index_of,
                           const std::vector<size_t>& queue, std::vector<int>& available) {
    size_t next = 0;
    const auto before = type_of_;
    for (const auto& [id, type] : before) {
      if (const auto place = index_of.find(id); place != index_of.end()) {
        available[type] -= view.jobs[place->second].scale;
        continue;
      }
      if (next < queue.size()) {
        const auto& head = view.jobs[queue[next]];
        if (head.scale <= available[type] && view.throughput[queue[next] * view.types.size() + type] > 0) {
          type_of_[head.id] = type;
          available[type] -= head.scale;
          ++next;
        }
      }
      type_of_.erase(id);
    }
    return next;
  }

  void place_queue_as_published(const ClusterView& view, const std::vector<size_t>& queue, size_t next,
                                std::vector<int>& available) {
    std::vector<size_t> open;  // types with devices left
    for (size_t j = 0; j < view.types.size(); ++j) {
      if (available[j] > 0) open.push_back(j);
    }
    for (; next < queue.size() && !open.empty(); ++next) {
      const auto& job = view.jobs[queue[next]];
      std::vector<size_t> fitting;  // places in `open`
      for (size_t i = 0; i < open.size(); ++i) {
        if (available[open[i]] >= job.scale) fitting.push_back(i);
      }
      if (fitting.empty()) return;
      const size_t drawn = random_.below(fitting.size());
      const size_t type = open.back();
      if (!(view.throughput[queue[next] * view.types.size() + type] > 0)) continue;
      type_of_[job.id] = type;
      available[type] -= job.scale;
      if (available[type] == 0) open.erase(open.begin() + static_cast<int64_t>(fitting[drawn]));
    }
  }

  PythonRandom random_;
  std::map<int64_t, size_t> type_of_;  // by job id
};

}  // namespace

PolicyEntry fifo_policy() {
  return {{.name = "fifo",
           .aliases = {},
           .objective = "first come, first served, blind to speeds; a job stays on its type",
           .formula = "X_mj = 1 on one type for the oldest jobs that fit",
           .fills_gaps = false,
           .shuffles_types = true},
          [](uint64_t seed) -> std::unique_ptr<Policy> { return std::make_unique<Fifo>(seed); }};
}

}  // namespace trireme::fleet
