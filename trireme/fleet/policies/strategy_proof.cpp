// A division that nobody can better for himself by lying about his speeds: the geometric mean of what jobs get is made
// largest (proportional fairness), and each job then pays with a part of its share for what its presence costs the
// others: it keeps Π_{k≠m} thr_k / thr_k(without m).
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/center.h"
#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

namespace {

class StrategyProof final : public Policy {
 public:
  explicit StrategyProof(Speeds speeds) : speeds_(speeds) {}

  Allocation allocate(const ClusterView& view) override {
    if (nothing_to_share(view)) return no_shares(view);
    const auto speeds = believed_speeds(view, speeds_);
    const auto everybody = share_problem(view, speeds, std::vector<double>(view.jobs.size(), 1));
    std::vector<size_t> able;  // a job that can run nowhere would make every product 0
    for (size_t m = 0; m < everybody.jobs; ++m) {
      if (can_run(everybody, m)) able.push_back(m);
    }
    Allocation allocation;
    allocation.alone.assign(everybody.jobs * everybody.types, 0);
    if (able.empty()) return allocation;
    const auto shares = fair(subset(everybody, able));
    const auto speed = speeds_of(everybody, able, shares);
    for (size_t i = 0; i < able.size(); ++i) {
      auto others = able;
      others.erase(others.begin() + static_cast<int64_t>(i));
      double kept = 1;
      if (!others.empty()) {
        const auto without = speeds_of(everybody, others, fair(subset(everybody, others)));
        for (size_t k = 0; k < others.size(); ++k) kept *= speed[k < i ? k : k + 1] / without[k];
      }
      for (size_t j = 0; j < everybody.types; ++j) {
        allocation.alone[able[i] * everybody.types + j] = std::min(1.0, kept) * shares[i * everybody.types + j];
      }
    }
    return allocation;
  }

 private:
  static ShareProblem subset(const ShareProblem& all, const std::vector<size_t>& members) {
    ShareProblem part;
    part.types = all.types;
    part.jobs = members.size();
    part.capacity = all.capacity;
    part.base.assign(part.jobs, 0);
    part.gain.assign(part.jobs, 0);
    for (size_t m : members) {
      part.scale.push_back(all.scale[m]);
      part.value.insert(part.value.end(), &all.value[m * all.types], &all.value[m * all.types] + all.types);
    }
    return part;
  }

  static std::vector<double> fair(const ShareProblem& problem) {
    const Pool pool(problem);
    auto solution = proportional_fairness(pool.problem());
    if (!solution.feasible)
      fail("the interior-point method found no proportionally fair split for {} jobs", problem.jobs);
    return pool.spread(solution).alone;
  }

  static std::vector<double> speeds_of(const ShareProblem& all, const std::vector<size_t>& members,
                                       const std::vector<double>& shares) {
    std::vector<double> result;
    for (size_t i = 0; i < members.size(); ++i) {
      double sum = 0;
      for (size_t j = 0; j < all.types; ++j) sum += all.value[members[i] * all.types + j] * shares[i * all.types + j];
      result.push_back(sum);
    }
    return result;
  }

  const Speeds speeds_;
};

const char* const formula = "max_X Π_m thr(m,X), then X_m · Π_{k≠m} thr_k / thr_k(without m)";

}  // namespace

PolicyEntry strategy_proof_policy() {
  return {{"strategy-proof", {}, "fair shares that no job can better by lying about its speeds", formula, true},
          [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<StrategyProof>(Speeds::known); }};
}

PolicyEntry strategy_proof_agnostic_policy() {
  PolicyInfo info{"strategy-proof-agnostic",
                  {},
                  "fair shares of time, whatever the device, less what each costs the others",
                  std::string(formula) + ", T = 1"};
  info.shuffles_types = true;
  return {info, [](uint64_t) -> std::unique_ptr<Policy> { return std::make_unique<StrategyProof>(Speeds::equal); }};
}

}  // namespace trireme::fleet
