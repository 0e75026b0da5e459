// Packing as Gandiva (OSDI 2018) does it, by trying: when more devices are wanted than there are, jobs of equal scale
// are grouped in random pairs; a pair that slows itself down is broken up again. Time is split equally among what
// is to run. Draws as the published one does, so the same seed gives the same pairs.
#include <algorithm>
#include <map>

#include "trireme/fleet/policies.h"
#include "trireme/fleet/python_random.h"

namespace trireme::fleet {

namespace {

class Gandiva final : public Policy {
 public:
  explicit Gandiva(uint64_t seed) : random_(seed) {}

  Allocation allocate(const ClusterView& view) override {
    Allocation allocation;
    allocation.alone.resize(view.jobs.size() * view.types.size(), 0);
    allocation.paired.resize(view.pairs.size() * view.types.size(), 0);
    if (view.jobs.empty()) return allocation;
    std::map<int64_t, size_t> index_of;
    int wanted = 0, available = 0;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      index_of[view.jobs[m].id] = m;
      wanted += view.jobs[m].scale;
    }
    for (const auto& type : view.types) available += type.devices;
    drop_bad_pairs(view, index_of);
    if (wanted <= available) {
      for (size_t m = 0; m < view.jobs.size(); ++m) {
        split(view, view.jobs.size(), view.jobs[m].scale, allocation.alone.data() + m * view.types.size());
      }
      return allocation;
    }
    const auto single = draw_pairs(view);
    const size_t groups = single.size() + partner_of_.size() / 2;
    for (size_t m : single) split(view, groups, view.jobs[m].scale, allocation.alone.data() + m * view.types.size());
    for (const auto& [id, partner] : partner_of_) {
      if (partner < id) continue;
      const size_t pair = view.find_pair(index_of.at(id), index_of.at(partner));
      if (pair == view.pairs.size()) continue;  // they fit nowhere together, and are drawn anew the next time
      split(view, groups, view.jobs[index_of.at(id)].scale, allocation.paired.data() + pair * view.types.size());
    }
    return allocation;
  }

 private:
  static void split(const ClusterView& view, size_t groups, int scale, double* shares) {
    double sum = 0;
    for (size_t j = 0; j < view.types.size(); ++j) {
      shares[j] = view.types[j].devices / static_cast<double>(groups) / scale;
      sum += shares[j];
    }
    for (size_t j = 0; j < view.types.size(); ++j) shares[j] /= std::max(1.0, sum);
  }

  // What both together do, of what each would do alone, over all types; 0 when they fail on one.
  static double worth(const ClusterView& view, size_t pair) {
    const size_t types = view.types.size();
    const auto& [first, second] = view.pairs[pair];
    double sum = 0;
    for (size_t j = 0; j < types; ++j) {
      const double rates[] = {view.throughput_first[pair * types + j], view.throughput_second[pair * types + j]};
      const int jobs[] = {first, second};
      for (int i = 0; i < 2; ++i) {
        if (rates[i] <= 0) return 0;
        sum += rates[i] / view.throughput[static_cast<size_t>(jobs[i]) * types + j];
      }
    }
    return sum;
  }

  void drop_bad_pairs(const ClusterView& view, const std::map<int64_t, size_t>& index_of) {
    std::erase_if(partner_of_, [&](const auto& both) {
      const auto first = index_of.find(both.first), second = index_of.find(both.second);
      if (first == index_of.end() || second == index_of.end()) return true;
      const size_t pair = view.find_pair(first->second, second->second);
      return pair == view.pairs.size() || worth(view, pair) < 1;
    });
  }

  // Pairs at random those that have no partner; answers who remains single.
  std::vector<size_t> draw_pairs(const ClusterView& view) {
    std::vector<size_t> open;
    for (size_t m = 0; m < view.jobs.size(); ++m) {
      if (!partner_of_.contains(view.jobs[m].id)) open.push_back(m);
    }
    const size_t tries = open.size();
    for (size_t i = 0; i < tries && open.size() > 1; ++i) {
      const auto [a, b] = random_.two_of(open.size());
      const auto& first = view.jobs[open[a]];
      const auto& second = view.jobs[open[b]];
      if (first.scale != second.scale) continue;
      partner_of_[first.id] = second.id;
      partner_of_[second.id] = first.id;
      open.erase(open.begin() + static_cast<int64_t>(std::max(a, b)));
      open.erase(open.begin() + static_cast<int64_t>(std::min(a, b)));
    }
    return open;
  }

  PythonRandom random_;
  std::map<int64_t, int64_t> partner_of_;  // by id, both ways
};

}  // namespace

PolicyEntry gandiva_policy() {
  return {{.name = "gandiva",
           .aliases = {},
           .objective = "equal time for all; when devices are short, random pairs share them as long as that pays",
           .formula = "X_cj = W_j / (n s_c), rows scaled to at most 1, over singles and drawn pairs c",
           .knows_speeds = true,
           .shares_devices = true},
          [](uint64_t seed) -> std::unique_ptr<Policy> { return std::make_unique<Gandiva>(seed); }};
}

}  // namespace trireme::fleet
