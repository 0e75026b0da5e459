// AlloX (EuroSys 2020): the least mean completion time of jobs of one device each, as an assignment. A job that is k-th
// from the last on a device delays k jobs by its own time there, so placing it there costs k · S/T. Jobs that run stay
// where they are; of the others only the first of each device is settled, the rest may change their mind.
#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/fleet/policies.h"
#include "trireme/fleet/policies/assignment.h"

namespace trireme::fleet {

namespace {

class Allox final : public Policy {
 public:
  Allocation allocate(const ClusterView& view) override {
    const size_t types = view.types.size();
    Allocation allocation;
    allocation.alone.resize(view.jobs.size() * types, 0);
    if (view.jobs.empty()) return allocation;
    std::vector<int> free;
    for (const auto& type : view.types) free.push_back(type.devices);
    std::vector<size_t> waiting;
    std::map<int64_t, size_t> still_there;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      const auto& job = view.jobs[m];
      if (job.scale != 1) refuse("policy allox takes jobs of one device, and job {} wants {}", job.id, job.scale);
      if (const auto place = type_of_.find(job.id); place != type_of_.end()) {
        still_there.insert(*place);
        --free[place->second];
      } else {
        waiting.push_back(m);
      }
    }
    type_of_ = std::move(still_there);
    // Oldest first; ids already are, but for jobs of one moment.
    std::stable_sort(waiting.begin(), waiting.end(),
                     [&](size_t a, size_t b) { return view.jobs[a].age_s > view.jobs[b].age_s; });
    settle(view, waiting, free);
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      if (const auto place = type_of_.find(view.jobs[m].id); place != type_of_.end()) {
        allocation.alone[m * types + place->second] = 1;
      }
    }
    return allocation;
  }

 private:
  void settle(const ClusterView& view, const std::vector<size_t>& waiting, const std::vector<int>& free) {
    std::vector<size_t> device_types;  // of every free device
    for (size_t j = 0; j < free.size(); ++j) {
      device_types.insert(device_types.end(), static_cast<size_t>(std::max(0, free[j])), j);
    }
    const size_t rows = waiting.size(), devices = device_types.size();
    if (rows == 0 || devices == 0) return;
    const size_t columns = rows * devices;
    std::vector<double> cost(rows * columns);
    for (size_t row = 0; row < rows; ++row) {
      const auto& job = view.jobs[waiting[row]];
      for (size_t device = 0; device < devices; ++device) {
        double rate = view.throughput[waiting[row] * view.types.size() + device_types[device]];
        if (rate == 0) rate = 1e-10;
        const double alone_s = job.steps_left / rate;
        for (size_t k = 1; k <= rows; ++k) {
          cost[row * columns + (k - 1) * devices + device] = static_cast<double>(k) * alone_s + job.age_s;
        }
      }
    }
    const auto column_of = assign(cost, rows, columns);
    // Who is furthest from the last on a device runs first there.
    std::vector<size_t> first(devices, rows);
    for (size_t row = 0; row < rows; ++row) {
      size_t& leader = first[column_of[row] % devices];
      if (leader == rows || column_of[row] > column_of[leader]) leader = row;
    }
    for (size_t device = 0; device < devices; ++device) {
      if (first[device] == rows) continue;
      const size_t m = waiting[first[device]];
      const bool runs = view.throughput[m * view.types.size() + device_types[device]] > 0;
      // The published one also leaves a job for ever on a type where it cannot run.
      if (runs || view.reference) type_of_[view.jobs[m].id] = device_types[device];
    }
  }

  std::map<int64_t, size_t> type_of_;  // of jobs that run, by id
};

}  // namespace

PolicyEntry allox_policy() {
  return {{.name = "allox",
           .aliases = {},
           .objective = "least mean completion time of jobs of one device each; running jobs never move",
           .formula = "min Σ over jobs of k S_m / T_mj, m being k-th from the last on its device (an assignment)",
           .knows_speeds = true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<Allox>(); }};
}

}  // namespace trireme::fleet
