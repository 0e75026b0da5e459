#include "trireme/fleet/lp/prices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/fleet/lp/basis.h"

namespace trireme::fleet {

struct PriceSolver::Work {
  BlockBasis basis;
  std::vector<double> base, gain, row_scale;  // [M], rows scaled so that a job's largest value is 1
  std::vector<double> guess, cost_guess;      // prices to start from: of the least v, of the least cost
  std::vector<uint8_t> never;                 // the columns that are closed from the start
  double level = std::numeric_limits<double>::quiet_NaN();
  double mean_capacity = 1;

  void load(const ShareProblem& problem);
  void open_all();
  double highest_level(const std::vector<int>& active) const;
  double set_level(const std::vector<int>& active, double at);
  std::vector<int> answer(const std::vector<int>& active);
  void settle(const std::vector<int>& active, std::vector<int>& candidates);
  void stretch_least(const std::vector<int>& active);
  bool reach(const std::vector<int>& active, double share);
  bool reach_from_samples(const ShareProblem& problem);
  bool satisfy(const std::vector<int>& active);
  void choose(const ShareProblem& problem, const std::vector<int>& active, double share);
  void cheapest(const std::vector<int>& active, const double* cost, double limit);
};

// Devices' rows are divided by their capacity, so that prices of all types are of one size.
void PriceSolver::Work::load(const ShareProblem& problem) {
  const size_t types = problem.types, jobs = problem.jobs;
  basis.resize(types, jobs);
  basis.steps = 0;
  if (guess.size() != types)
    guess.assign(types, 1.0 / static_cast<double>(types)), level = std::nan(""), cost_guess.clear();
  mean_capacity = std::accumulate(problem.capacity.begin(), problem.capacity.end(), 0.0) / static_cast<double>(types);
  base.assign(jobs, 0);
  gain.assign(jobs, 0);
  row_scale.assign(jobs, 1);
  for (size_t m = 0; m < jobs; ++m) {
    double largest = 0;
    for (size_t j = 0; j < types; ++j) {
      if (problem.capacity[j] > 0) largest = std::max(largest, problem.value[m * types + j]);
    }
    const double scale = largest > 0 ? 1 / largest : 1;
    row_scale[m] = scale;
    base[m] = problem.base[m] * scale;
    gain[m] = problem.raises_level ? problem.gain[m] * scale : 0;
    for (size_t j = 0; j < types; ++j) {
      const double value = problem.value[m * types + j];
      const bool runs = value > 0 && problem.capacity[j] > 0;
      basis.closed[m * (types + 2) + j] = !runs;
      basis.value[m * types + j] = runs ? value * scale : 0;
      basis.usage[m * types + j] = runs ? problem.scale[m] * mean_capacity / problem.capacity[j] : 0;
    }
  }
  never = basis.closed;
}

void PriceSolver::Work::open_all() {
  basis.closed = never;
  std::fill(basis.tight.begin(), basis.tight.end(), 0);
}

// What the slowest job reaches when it has all it can use.
double PriceSolver::Work::highest_level(const std::vector<int>& active) const {
  double highest = std::numeric_limits<double>::infinity();
  for (int m : active) {
    if (gain[m] > 0) highest = std::min(highest, (1 - base[m]) / gain[m]);
  }
  return highest;
}

// Returns the largest demand.
double PriceSolver::Work::set_level(const std::vector<int>& active, double at) {
  double largest = 0;
  for (int m : active) {
    basis.demand[m] = std::min(1.0, gain[m] > 0 ? base[m] + gain[m] * at : base[m]);
    largest = std::max(largest, basis.demand[m]);
  }
  return largest;
}

// Everybody answers the prices as they are. Returns those who hesitate most between two answers.
std::vector<int> PriceSolver::Work::answer(const std::vector<int>& active) {
  std::vector<std::pair<double, int>> hesitation;
  hesitation.reserve(active.size());
  for (int m : active) {
    basis.respond(m);
    hesitation.emplace_back(basis.gap(m), m);
  }
  const size_t few = std::min(active.size(), std::max<size_t>({32, 8 * basis.types, active.size() / 16}));
  std::nth_element(hesitation.begin(), hesitation.begin() + static_cast<int64_t>(few) - 1, hesitation.end());
  std::vector<int> candidates;
  for (size_t i = 0; i < few; ++i) candidates.push_back(hesitation[i].second);
  return candidates;
}

// The candidates settle the prices among themselves; whoever then wants to change joins them.
void PriceSolver::Work::settle(const std::vector<int>& active, std::vector<int>& candidates) {
  basis.optimize(candidates);
  while (basis.stretch() > basis.stretch_enough) {
    const auto more = basis.improvable(active);
    if (more.empty()) return;
    candidates.insert(candidates.end(), more.begin(), more.end());
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    basis.optimize(candidates);
  }
}

// The least v for the demands as they are.
void PriceSolver::Work::stretch_least(const std::vector<int>& active) {
  open_all();
  basis.cost = nullptr;
  basis.stretch_cost = 1;
  basis.stretch_limit = std::numeric_limits<double>::infinity();
  basis.price = guess;
  auto candidates = answer(active);
  basis.begin(active);
  settle(active, candidates);
  guess = basis.price;
}

// The highest level of these jobs on a share of the devices. v is convex in the level, so a step of Newton's method
// lands at the level or above it: what is within the limit after a step from above is the level.
bool PriceSolver::Work::reach(const std::vector<int>& active, double share) {
  const double highest = highest_level(active), target = share * mean_capacity;
  double at = std::isnan(level) ? highest : std::min(level, highest);
  bool from_above = false;
  for (int turn = 0; turn < 200; ++turn) {
    double v = 0, slope = 0, next = highest;
    if (set_level(active, at) > 0) {
      stretch_least(active);
      v = basis.stretch();
      for (int m : active) slope += gain[m] > 0 ? basis.demand_price(m) * gain[m] : 0;
    }
    level = at;
    if (v <= target * (1 + 1e-11)) {
      if (at >= highest || from_above || (slope > 0 && v >= target * (1 - 1e-13))) return true;
      if (slope > 0) next = std::min(highest, at + (target - v) / slope);
      if (next <= at) return true;
    } else {
      if (!(slope > 0)) return v <= target * (1 + 1e-9);
      next = at + (target - v) / slope;
      if (next >= at) return true;  // rounding is all that is left
      from_above = true;
    }
    at = next;
  }
  return false;
}

// Ever larger samples hand their prices on; the jobs of a sample are spread over all of them.
bool PriceSolver::Work::reach_from_samples(const ShareProblem& problem) {
  std::vector<int> order(basis.jobs);
  std::iota(order.begin(), order.end(), 0);
  uint64_t random = 7;
  for (size_t i = order.size(); i > 1; --i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(random >> 33) % i]);
  }
  for (size_t size = 8 * basis.types; size * 2 < order.size(); size *= 4) {
    std::vector<int> sample(order.begin(), order.begin() + static_cast<int64_t>(size));
    const double share = static_cast<double>(size) / static_cast<double>(order.size());
    if (!reach(sample, share)) return false;
    if (problem.costs.size() == 1) choose(problem, sample, share);
  }
  std::sort(order.begin(), order.end());
  return reach(order, 1);
}

// The demands as they are, without a level.
bool PriceSolver::Work::satisfy(const std::vector<int>& active) {
  if (set_level(active, 0) <= 0) {
    basis.stretch_limit = mean_capacity;
    basis.cost = nullptr;
    basis.begin_idle(active);
    return true;
  }
  stretch_least(active);
  return basis.stretch() <= mean_capacity * (1 + 1e-9);
}

// The least cost within the limit of v, from guessed prices: answers first, then enough of them revised to keep the
// limit.
void PriceSolver::Work::cheapest(const std::vector<int>& active, const double* cost, double limit) {
  open_all();
  basis.cost = cost;
  basis.price = cost_guess;
  basis.stretch_limit = std::numeric_limits<double>::infinity();
  auto candidates = answer(active);
  basis.begin(active);
  if (basis.stretch() > limit) {
    basis.cost = nullptr;
    basis.stretch_cost = 1;
    basis.stretch_enough = limit;
    basis.reprice();
    settle(active, candidates);
    basis.stretch_enough = -std::numeric_limits<double>::infinity();
  }
  basis.cost = cost;
  basis.stretch_cost = 0;
  basis.stretch_limit = std::max(limit, basis.stretch());
  basis.reprice();
  settle(active, candidates);
}

void PriceSolver::Work::choose(const ShareProblem& problem, const std::vector<int>& active, double share) {
  const double limit = share * mean_capacity;
  // Where only the least v keeps the limit, little is left to choose, and columns that would raise v never come in.
  const bool scarce = !basis.at_limit() && basis.stretch() >= limit * (1 - 1e-12);
  if (scarce) basis.close_worse(active);
  for (size_t i = 0; i < problem.costs.size(); ++i) {
    const double* cost = problem.costs[i].alone.data();
    if (i == 0 && !scarce && cost_guess.size() == basis.types) {
      cheapest(active, cost, limit);
    } else {
      basis.stretch_cost = 0;
      basis.stretch_limit = std::max(limit, basis.stretch());
      basis.cost = cost;
      basis.reprice();
      basis.optimize(active);
    }
    if (i == 0 && !scarce) cost_guess = basis.price;
    if (i + 1 < problem.costs.size()) basis.close_worse(active);
  }
}

PriceSolver::PriceSolver() : work_(std::make_unique<Work>()) {}
PriceSolver::~PriceSolver() = default;

int64_t PriceSolver::steps() const { return work_->basis.steps; }

ShareSolution PriceSolver::solve(const ShareProblem& problem) {
  ShareSolution solution;
  auto& work = *work_;
  work.load(problem);
  std::vector<int> active(problem.jobs);
  std::iota(active.begin(), active.end(), 0);
  for (int m : active) {
    if (work.base[m] > 1 + 1e-12 && !(work.gain[m] > 0)) return solution;
  }
  const bool raises = std::any_of(work.gain.begin(), work.gain.end(), [](double gain) { return gain > 0; });
  if (!raises) {
    solution.feasible = work.satisfy(active);
  } else if (std::isnan(work.level)) {
    solution.feasible = work.reach_from_samples(problem);
  } else {
    solution.feasible = work.reach(active, 1);
  }
  if (!solution.feasible) return solution;
  solution.level = raises ? work.level : 0;
  solution.pressure.assign(problem.jobs, 0);
  if (raises) {
    double slope = 0;
    for (int m : active) slope += work.gain[m] > 0 ? work.basis.demand_price(m) * work.gain[m] : 0;
    const bool at_top = work.level >= work.highest_level(active);
    for (int m : active) {
      const double demand_price = work.basis.demand_price(m) * work.row_scale[m];
      if (at_top) {
        solution.pressure[m] = work.gain[m] > 0 && work.basis.demand[m] >= 1 - 1e-12 ? 1 / problem.gain[m] : 0;
      } else if (slope > 0 && demand_price > 1e-10 * work.row_scale[m]) {
        solution.pressure[m] = demand_price / slope;
      }
    }
  }
  work.choose(problem, active, 1);
  solution.alone.assign(problem.jobs * problem.types, 0);
  work.basis.shares(active, solution.alone.data());
  return solution;
}

}  // namespace trireme::fleet
