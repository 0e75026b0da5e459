#include <algorithm>
#include <map>
#include <tuple>

#include "trireme/fleet/lp/share_solver.h"

namespace trireme::fleet {

Pool::Pool(const ShareProblem& problem) : jobs_(problem.jobs), types_(problem.types) {
  classify_jobs(problem, false);
  if (!classify_pairs(problem)) {
    classify_jobs(problem, true);
    classify_pairs(problem);
  }
  sum_up(problem);
}

void Pool::classify_jobs(const ShareProblem& problem, bool alone) {
  // Sorted by what makes jobs alike; classes are numbered in the order of their first jobs.
  const auto row = [&](int m) { return &problem.value[m * types_]; };
  const auto before = [&](int a, int b) {
    const auto left = std::tie(problem.scale[a], problem.base[a], problem.gain[a]);
    const auto right = std::tie(problem.scale[b], problem.base[b], problem.gain[b]);
    if (left != right) return left < right;
    return std::lexicographical_compare(row(a), row(a) + types_, row(b), row(b) + types_);
  };
  std::map<int, int, decltype(before)> classes(before);
  class_of_.resize(jobs_);
  int count = 0;
  for (int m = 0; m < static_cast<int>(jobs_); ++m) {
    if (alone) {
      class_of_[m] = count++;
    } else {
      const auto [at, added] = classes.emplace(m, count);
      if (added) ++count;
      class_of_[m] = at->second;
    }
  }
  pooled_ = {};
  pooled_.jobs = static_cast<size_t>(count);
  pooled_.types = types_;
  pooled_.count.assign(pooled_.jobs, 0);
  for (int number : class_of_) ++pooled_.count[number];
}

// Whether all pairs of two classes are there and have the same values.
bool Pool::classify_pairs(const ShareProblem& problem) {
  std::map<std::pair<int, int>, int> classes;
  class_of_pair_.assign(problem.pairs.size(), 0);
  swapped_.assign(problem.pairs.size(), 0);
  std::vector<size_t> example;
  for (size_t c = 0; c < problem.pairs.size(); ++c) {
    int first = class_of_[problem.pairs[c].first], second = class_of_[problem.pairs[c].second];
    swapped_[c] = first > second;
    if (swapped_[c]) std::swap(first, second);
    const auto [at, added] = classes.try_emplace({first, second}, static_cast<int>(example.size()));
    class_of_pair_[c] = at->second;
    if (added) {
      example.push_back(c);
      pooled_.pairs.push_back({first, second});
      pooled_.pair_count.push_back(0);
    }
    ++pooled_.pair_count[at->second];
    const size_t like = example[at->second];
    for (size_t j = 0; j < types_; ++j) {
      double mine[2] = {problem.value_first[c * types_ + j], problem.value_second[c * types_ + j]};
      double other[2] = {problem.value_first[like * types_ + j], problem.value_second[like * types_ + j]};
      if (swapped_[c]) std::swap(mine[0], mine[1]);
      if (swapped_[like]) std::swap(other[0], other[1]);
      // Two jobs of one class: which of them is first must not matter.
      if (first == second && mine[0] != mine[1]) return false;
      if (mine[0] != other[0] || mine[1] != other[1]) return false;
    }
  }
  for (size_t p = 0; p < pooled_.pairs.size(); ++p) {
    const auto [first, second] = pooled_.pairs[p];
    const double one = pooled_.count[first], two = pooled_.count[second];
    if (pooled_.pair_count[p] != (first == second ? one * (one - 1) / 2 : one * two)) return false;
  }
  return true;
}

void Pool::sum_up(const ShareProblem& problem) {
  const size_t classes = pooled_.jobs, pairs = pooled_.pairs.size();
  pooled_.capacity = problem.capacity;
  pooled_.raises_level = problem.raises_level;
  pooled_.curved = problem.curved;
  pooled_.scale.resize(classes);
  pooled_.base.resize(classes);
  pooled_.gain.resize(classes);
  pooled_.key.resize(classes);
  pooled_.value.resize(classes * types_);
  pooled_.value_first.resize(pairs * types_);
  pooled_.value_second.resize(pairs * types_);
  pooled_.costs.assign(problem.costs.size(), {});
  for (auto& cost : pooled_.costs) cost.alone.assign(classes * types_, 0), cost.paired.assign(pairs * types_, 0);
  for (size_t m = jobs_; m-- > 0;) {
    const auto number = static_cast<size_t>(class_of_[m]);
    pooled_.scale[number] = problem.scale[m];
    pooled_.base[number] = problem.base[m];
    pooled_.gain[number] = problem.gain[m];
    // The key of a class is what its jobs are like, so that a class keeps it while its jobs come and go.
    uint64_t key = static_cast<uint64_t>(problem.scale[m]);
    for (size_t j = 0; j < types_; ++j) {
      const double value = problem.value[m * types_ + j];
      pooled_.value[number * types_ + j] = value;
      key = (key ^ static_cast<uint64_t>(value * 1e9)) * 0x9E3779B97F4A7C15u;
      for (size_t i = 0; i < problem.costs.size(); ++i) {
        pooled_.costs[i].alone[number * types_ + j] += problem.costs[i].alone[m * types_ + j] / pooled_.count[number];
      }
    }
    pooled_.key[number] = key;
  }
  for (size_t c = 0; c < problem.pairs.size(); ++c) {
    const auto number = static_cast<size_t>(class_of_pair_[c]);
    for (size_t j = 0; j < types_; ++j) {
      const size_t from = c * types_ + j, to = number * types_ + j;
      pooled_.value_first[to] = swapped_[c] ? problem.value_second[from] : problem.value_first[from];
      pooled_.value_second[to] = swapped_[c] ? problem.value_first[from] : problem.value_second[from];
      for (size_t i = 0; i < problem.costs.size(); ++i) {
        pooled_.costs[i].paired[to] += problem.costs[i].paired[from] / pooled_.pair_count[number];
      }
    }
  }
}

ShareSolution Pool::spread(const ShareSolution& pooled) const {
  ShareSolution solution;
  if (!pooled.feasible) return solution;
  solution.feasible = true;
  solution.level = pooled.level;
  solution.alone.resize(jobs_ * types_);
  solution.paired.resize(class_of_pair_.size() * types_);
  solution.pressure.resize(jobs_);
  for (size_t m = 0; m < jobs_; ++m) {
    const auto number = static_cast<size_t>(class_of_[m]);
    solution.pressure[m] = pooled.pressure[number] / pooled_.count[number];
    for (size_t j = 0; j < types_; ++j) {
      solution.alone[m * types_ + j] = pooled.alone[number * types_ + j] / pooled_.count[number];
    }
  }
  for (size_t c = 0; c < class_of_pair_.size(); ++c) {
    const auto number = static_cast<size_t>(class_of_pair_[c]);
    for (size_t j = 0; j < types_; ++j) {
      solution.paired[c * types_ + j] = pooled.paired[number * types_ + j] / pooled_.pair_count[number];
    }
  }
  return solution;
}

}  // namespace trireme::fleet
