// Random clusters for the tests of policies: smooth ones and nasty ones (equal jobs, whole numbers, types that jobs
// cannot use, types without devices, jobs larger than a type).
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "trireme/fleet/lp/problem.h"
#include "trireme/fleet/policy.h"

namespace trireme::fleet {

struct RandomCluster {
  explicit RandomCluster(uint64_t seed) : random(seed) {}

  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random); }
  int below(int bound) { return static_cast<int>(random() % static_cast<uint64_t>(bound)); }

  ClusterView view(int most_jobs, int most_types, bool pairs) {
    const int jobs = 1 + below(most_jobs), types = 1 + below(most_types), kinds = below(2) ? 3 : 1000000;
    const bool whole = below(3) == 0, mixed = below(2), weighted = below(3) == 0, gaps = below(3) == 0;
    const double load = std::pow(10, -0.7 + 1.7 * uniform());
    ClusterView view;
    double devices = 0;
    for (int m = 0; m < jobs; ++m) {
      PolicyJob job;
      job.id = 3 * m + below(3);
      const double dice = uniform();
      if (mixed) job.scale = dice < 0.7 ? 1 : dice < 0.8 ? 2 : dice < 0.95 ? 4 : 8;
      if (weighted) job.weight = 1 + below(3);
      job.entity = below(3);
      job.steps_left = std::exp(8 + 6 * uniform());
      job.age_s = below(2) ? 0 : 1e5 * uniform();
      job.isolated_s = job.age_s * uniform();
      if (below(3) == 0) job.deadline_s = 1e5 * uniform();
      devices += job.scale;
      view.jobs.push_back(job);
    }
    for (int j = 0; j < types; ++j) {
      const double count = std::round(devices / load / types * (0.3 + uniform()));
      const bool empty = gaps && types > 1 && below(6) == 0;
      view.types.push_back(
          {"type" + std::to_string(j), empty ? 0 : std::max(1, static_cast<int>(count)), 0.1 + uniform()});
    }
    view.types[0].devices = std::max(view.types[0].devices, 8);  // every job can run somewhere
    std::vector<int> kind;
    for (int m = 0; m < jobs; ++m) {
      kind.push_back(below(kinds));
      std::mt19937_64 own(static_cast<uint64_t>(kind.back()) * 77 + 5);
      const auto own_uniform = [&] { return std::uniform_real_distribution<double>(0, 1)(own); };
      for (int j = 0; j < types; ++j) {
        double speed = std::exp(3 * own_uniform());
        if (whole) speed = std::ceil(speed / 4);
        if (own_uniform() < 0.1 && j > 0) speed = 0;
        view.throughput.push_back(speed * view.jobs[m].scale);
      }
    }
    if (pairs) add_pairs(view, kind);
    if (below(2)) {
      view.held.assign(static_cast<size_t>(jobs * types), 0);
      for (int m = 0; m < jobs; ++m) {
        if (below(5)) view.held[m * types + below(types)] = uniform();
      }
    }
    return view;
  }

  void add_pairs(ClusterView& view, const std::vector<int>& kind) {
    const size_t types = view.types.size();
    for (int a = 0; a < static_cast<int>(view.jobs.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(view.jobs.size()); ++b) {
        if (view.jobs[a].scale != view.jobs[b].scale) continue;
        std::mt19937_64 own(static_cast<uint64_t>(std::min(kind[a], kind[b])) * 1009 +
                            static_cast<uint64_t>(std::max(kind[a], kind[b])));
        view.pairs.push_back({a, b});
        for (size_t j = 0; j < types; ++j) {
          double first = std::uniform_real_distribution<double>(0.2, 0.9)(own);
          double second = kind[a] == kind[b] ? first : std::uniform_real_distribution<double>(0.2, 0.9)(own);
          if (kind[a] > kind[b]) std::swap(first, second);
          const bool fits = own() % 4 != 0 && view.throughput[a * types + j] > 0 && view.throughput[b * types + j] > 0;
          view.throughput_first.push_back(fits ? first * view.throughput[a * types + j] : 0);
          view.throughput_second.push_back(fits ? second * view.throughput[b * types + j] : 0);
        }
      }
    }
  }

  std::mt19937_64 random;
};

// Σ_j T_mj X_mj, pairs included.
inline std::vector<double> speeds_under(const ClusterView& view, const Allocation& allocation) {
  const size_t types = view.types.size();
  std::vector<double> result(view.jobs.size(), 0);
  for (size_t i = 0; i < allocation.alone.size(); ++i) result[i / types] += view.throughput[i] * allocation.alone[i];
  for (size_t i = 0; i < allocation.paired.size(); ++i) {
    result[view.pairs[i / types].first] += view.throughput_first[i] * allocation.paired[i];
    result[view.pairs[i / types].second] += view.throughput_second[i] * allocation.paired[i];
  }
  return result;
}

// By how much an allocation breaks the rules that all have in common, devices relative to their number.
inline double violation(const ClusterView& view, const Allocation& allocation) {
  const size_t types = view.types.size();
  if (allocation.alone.size() != view.jobs.size() * types) return 1e9;
  if (allocation.paired.size() != view.pairs.size() * types) return 1e9;
  std::vector<double> time(view.jobs.size(), 0), used(types, 0);
  double worst = 0;
  const auto check = [&](double share) { worst = std::max(worst, share >= 0 ? 0 : std::isnan(share) ? 1e9 : -share); };
  for (size_t i = 0; i < allocation.alone.size(); ++i) {
    check(allocation.alone[i]);
    time[i / types] += allocation.alone[i];
    used[i % types] += allocation.alone[i] * view.jobs[i / types].scale;
  }
  for (size_t i = 0; i < allocation.paired.size(); ++i) {
    const auto [first, second] = view.pairs[i / types];
    check(allocation.paired[i]);
    time[first] += allocation.paired[i];
    time[second] += allocation.paired[i];
    used[i % types] += allocation.paired[i] * view.jobs[first].scale;
  }
  for (double each : time) worst = std::max(worst, each - 1);
  for (size_t j = 0; j < types; ++j)
    worst = std::max(worst, (used[j] - view.types[j].devices) / std::max(1, view.types[j].devices));
  return worst;
}

// The max-min problem of a view, as the policy of that name poses it.
inline ShareProblem max_min_problem(const ClusterView& view) {
  ShareProblem problem;
  problem.types = view.types.size();
  problem.jobs = view.jobs.size();
  double total = 0;
  for (const auto& type : view.types) problem.capacity.push_back(type.devices), total += type.devices;
  for (size_t m = 0; m < problem.jobs; ++m) {
    double average = 0;
    bool runs = false;
    for (size_t j = 0; j < problem.types; ++j)
      average += view.throughput[m * problem.types + j] * view.types[j].devices / total;
    for (size_t j = 0; j < problem.types; ++j) {
      const bool fits = view.jobs[m].scale <= view.types[j].devices;
      const double speed = fits ? view.throughput[m * problem.types + j] : 0;
      runs |= speed > 0;
      problem.value.push_back(speed > 0 ? speed * view.jobs[m].scale / (view.jobs[m].weight * average) : 0);
    }
    problem.scale.push_back(view.jobs[m].scale);
    problem.base.push_back(0);
    problem.gain.push_back(runs);
    problem.key.push_back(static_cast<uint64_t>(view.jobs[m].id));
  }
  return problem;
}

}  // namespace trireme::fleet
