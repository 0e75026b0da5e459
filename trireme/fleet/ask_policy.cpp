// The policy is asked: what it sees is put together from the jobs and the books, its answer goes into the books.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/fleet/scheduler.h"

namespace trireme::fleet {

void Scheduler::solve_if_due() {
  const bool long_ago = now_s_ - last_reset_s_ >= options_.solve_every_s || last_reset_s_ == 0;
  const bool at_once = !options_.reference && (devices_changed_ || !info_.fills_gaps);
  if (info_.every_round || (jobs_changed_ && (long_ago || at_once))) solve();
}

void Scheduler::solve() {
  book_.settle(now_s_ - last_reset_s_);
  last_reset_s_ = now_s_;
  std::vector<size_t> pair_rows, job_rows(jobs_.size());
  for (size_t row = 0; row < book_.rows().size(); ++row) {
    if (!book_.rows()[row].shared()) job_rows[static_cast<size_t>(book_.rows()[row].first)] = row;
  }
  view_jobs(job_rows);
  view_pairs(pair_rows);
  const auto begin = std::chrono::steady_clock::now();
  const auto allocation = policy_->allocate(view_);
  ledger_.solver_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++ledger_.solves;
  take_allocation(allocation, job_rows, pair_rows);
  jobs_changed_ = devices_changed_ = false;
}

void Scheduler::view_jobs(const std::vector<size_t>& job_rows) {
  const size_t types = cluster_.types.size();
  for (size_t type = 0; type < types; ++type) view_.types[type].devices = placement_.usable_of(static_cast<int>(type));
  view_.entities.clear();
  const bool owned = owners_.size() > 1 || (owners_.size() == 1 && !owners_[0].name.empty());
  for (const auto& owner : owners_) {
    if (owned) view_.entities.push_back({owner.weight, owner.in_order});
  }
  view_.jobs.resize(jobs_.size());
  view_.throughput.resize(jobs_.size() * types);
  view_.held.resize(jobs_.size() * types);
  for (size_t place = 0; place < jobs_.size(); ++place) {
    auto& job = jobs_[place];
    if (job.isolated_rate > 0) job.isolated_s += (job.done - job.done_at_solve) / job.isolated_rate;
    job.done_at_solve = job.done;
    job.isolated_rate = isolated_rate(job_rows[place], job.scale);
    view_.jobs[place] = {.id = job.id,
                         .scale = job.scale,
                         .weight = job.weight,
                         .entity = job.entity,
                         .steps_left = job.left(),
                         .age_s = now_s_ - job.arrival_s,
                         .isolated_s = job.isolated_s,
                         .deadline_s = job.deadline_at_s - now_s_,
                         .service_s = job.service_s};
    for (size_t type = 0; type < types; ++type) {
      view_.throughput[place * types + type] = book_.rate(job_rows[place], static_cast<int>(type), 0);
      view_.held[place * types + type] = book_.share(job_rows[place], static_cast<int>(type));
    }
  }
}

// The policy sees pairs by their first job and then their second; the book holds them by their second.
void Scheduler::view_pairs(std::vector<size_t>& pair_rows) {
  view_.pairs.clear();
  view_.throughput_first.clear();
  view_.throughput_second.clear();
  if (!info_.shares_devices) return;
  const auto& rows = book_.rows();
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].shared()) pair_rows.push_back(row);
  }
  std::stable_sort(pair_rows.begin(), pair_rows.end(),
                   [&](size_t a, size_t b) { return rows[a].first < rows[b].first; });
  for (size_t row : pair_rows) {
    view_.pairs.push_back({rows[row].first, rows[row].second});
    for (int type = 0; type < static_cast<int>(cluster_.types.size()); ++type) {
      view_.throughput_first.push_back(book_.rate(row, type, 0));
      view_.throughput_second.push_back(book_.rate(row, type, 1));
    }
  }
}

void Scheduler::take_allocation(const Allocation& allocation, const std::vector<size_t>& job_rows,
                                const std::vector<size_t>& pair_rows) {
  const size_t types = cluster_.types.size();
  if (allocation.alone.size() != job_rows.size() * types ||
      (!allocation.paired.empty() && allocation.paired.size() != pair_rows.size() * types)) {
    fail("policy {} answered for {} and {} shares of {} and {}", info_.name, allocation.alone.size(),
         allocation.paired.size(), job_rows.size() * types, pair_rows.size() * types);
  }
  std::vector<double> shares(book_.rows().size() * types, 0);
  const auto copy = [&](const std::vector<double>& from, const std::vector<size_t>& rows) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (std::isnan(from[i])) fail("policy {} answered with a share that is no number", info_.name);
      shares[rows[i / types] * types + i % types] = std::max(0.0, from[i]);
    }
  };
  copy(allocation.alone, job_rows);
  copy(allocation.paired, pair_rows);
  book_.set_shares(std::move(shares));
}

// On its own n-th of the cluster, as far as it can use it: W_j / (n s) of each type, in all no more than its whole
// time.
double Scheduler::isolated_rate(size_t row, int scale) const {
  const double among = static_cast<double>(jobs_.size()) * scale;
  double whole = 0, rate = 0;
  for (int type = 0; type < static_cast<int>(cluster_.types.size()); ++type) {
    whole += placement_.usable_of(type) / among;
    rate += book_.rate(row, type, 0) * placement_.usable_of(type) / among;
  }
  return rate / std::max(1.0, whole);
}

}  // namespace trireme::fleet
