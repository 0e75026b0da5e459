// What is to run now: jobs by priority, then their devices.
#include <algorithm>
#include <cmath>

#include "trireme/fleet/scheduler.h"

namespace trireme::fleet {

// Types are visited one after the other, and a job takes the first that has room. The reference begins with v100, p100,
// k80; we begin with the type that is fastest for the most.
void Scheduler::choose_type_order() {
  type_order_ = cluster_.written_order;
  std::vector<double> worth(cluster_.types.size(), 0);
  if (options_.reference) {
    const std::vector<std::string> published{"k80", "p100", "v100"};
    for (size_t type = 0; type < worth.size(); ++type) {
      const auto place = std::find(published.begin(), published.end(), cluster_.types[type].name);
      worth[type] = place == published.end() ? 0 : static_cast<double>(place - published.begin()) + 1;
    }
  } else {
    for (int kind = 0; kind < static_cast<int>(table_.kinds()); ++kind) {
      double best = 0;
      for (size_t type = 0; type < worth.size(); ++type)
        best = std::max(best, table_.alone(kind, static_cast<int>(type)));
      for (size_t type = 0; best > 0 && type < worth.size(); ++type) {
        worth[type] += std::max(0.0, table_.alone(kind, static_cast<int>(type))) / best;
      }
    }
  }
  std::stable_sort(type_order_.begin(), type_order_.end(),
                   [&](int a, int b) { return worth[static_cast<size_t>(a)] > worth[static_cast<size_t>(b)]; });
}

void Scheduler::begin_round() {
  solve_if_due();
  ++ledger_.rounds;
  std::swap(round_, before_);
  round_.clear();
  lease_rows_.clear();
  lease_began_s_.clear();
  lease_runs_.clear();
  if (!options_.reference) round_end_s_ = now_s_ + options_.round_s;
  placement_.free_all();
  choose(false);
  count_extensions();
  for (auto& job : jobs_) job.lease = std::exchange(job.next_lease, -1);
  sample();
}

void Scheduler::fill_idle() {
  if (static_cast<size_t>(running_jobs()) == jobs_.size()) return;
  int idle = 0;
  for (int type : type_order_) idle += placement_.free_of(type);
  if (idle == 0) return;
  if (!info_.fills_gaps) solve_if_due();
  choose(true);
  for (auto& job : jobs_) {
    if (job.next_lease >= 0) job.lease = std::exchange(job.next_lease, -1);
  }
}

int Scheduler::running_jobs() const {
  return static_cast<int>(std::count_if(jobs_.begin(), jobs_.end(), [](const Active& job) { return job.lease >= 0; }));
}

void Scheduler::choose(bool only_waiting) {
  visited_types_ = type_order_;
  if (options_.reference && info_.shuffles_types) type_shuffler_.shuffle(visited_types_);
  taken_.assign(jobs_.size(), 0);
  size_t open = jobs_.size();
  for (size_t place = 0; only_waiting && place < jobs_.size(); ++place) {
    if (jobs_[place].lease < 0) continue;
    taken_[place] = 1;
    --open;
  }
  for (int type : visited_types_) {
    int left = placement_.free_of(type);
    if (left == 0 || open == 0) continue;
    wishes_.clear();
    for (int row_number : book_.order(type, info_.fills_gaps, only_waiting ? &taken_ : nullptr)) {
      if (left == 0 || open == 0) break;
      const auto& row = book_.rows()[static_cast<size_t>(row_number)];
      if (row.scale > left || taken_[static_cast<size_t>(row.first)]) continue;
      if (row.shared() && taken_[static_cast<size_t>(row.second)]) continue;
      left -= row.scale;
      open -= row.shared() ? 2 : 1;
      taken_[static_cast<size_t>(row.first)] = 1;
      if (row.shared()) taken_[static_cast<size_t>(row.second)] = 1;
      // In the reference a job that the policy has not seen keeps others from these devices, and does not run.
      if (options_.reference && !row.solved) continue;
      wishes_.push_back({row_number, row.scale, held_by(row, type, only_waiting), -1});
    }
    std::stable_sort(wishes_.begin(), wishes_.end(), [](const Wish& a, const Wish& b) { return a.scale > b.scale; });
    if (options_.reference) {
      placement_.place_in_order(type, wishes_, round_.devices);
    } else {
      placement_.place_packed(type, wishes_, round_.devices);
    }
    for (const auto& wish : wishes_) lease_out(wish, type);
  }
}

// In the reference a pair and its jobs alone are different things, and do not inherit each other's devices.
std::span<const int> Scheduler::held_by(const ShareBook::Row& row, int type, bool only_waiting) const {
  if (only_waiting) return {};
  for (int place : {row.first, row.second}) {
    if (place < 0 || jobs_[static_cast<size_t>(place)].lease < 0) continue;
    const auto& lease = before_.leases[static_cast<size_t>(jobs_[static_cast<size_t>(place)].lease)];
    if (lease.type != type) continue;
    if (options_.reference && !same_jobs(lease, row)) continue;
    return before_.devices_of(lease);
  }
  return {};
}

bool Scheduler::same_jobs(const Lease& lease, const ShareBook::Row& row) const {
  const int64_t second = row.shared() ? jobs_[static_cast<size_t>(row.second)].id : -1;
  return lease.jobs[0] == jobs_[static_cast<size_t>(row.first)].id && lease.jobs[1] == second;
}

void Scheduler::lease_out(const Wish& wish, int type) {
  const auto& row = book_.rows()[static_cast<size_t>(wish.row)];
  Lease lease;
  lease.type = type;
  lease.begin = wish.begin;
  lease.count = wish.scale;
  const auto number = static_cast<int>(round_.leases.size());
  for (int which = 0; which < (row.shared() ? 2 : 1); ++which) {
    auto& job = jobs_[static_cast<size_t>(which == 0 ? row.first : row.second)];
    const auto at = static_cast<size_t>(which);
    lease.jobs[at] = job.id;
    lease.kinds[at] = job.kind;
    lease.steps[at] = job.left();
    if (options_.reference) {
      lease.steps[at] = std::min(lease.steps[at],
                                 std::trunc(book_.rate(static_cast<size_t>(wish.row), type, which) * options_.round_s));
    }
    const auto mine =
        std::span<const int>(round_.devices).subspan(static_cast<size_t>(wish.begin), static_cast<size_t>(wish.scale));
    const bool stays =
        job.lease >= 0 && std::ranges::equal(before_.devices_of(before_.leases[static_cast<size_t>(job.lease)]), mine);
    lease.restart = lease.restart || (job.started && !stays);
    if (!job.started) ledger_.jobs[static_cast<size_t>(job.id)].first_start_s = now_s_;
    job.started = true;
    job.next_lease = number;
  }
  round_.leases.push_back(lease);
  lease_rows_.push_back(wish.row);
  lease_began_s_.push_back(now_s_);
  lease_runs_.push_back(1);
  ++running_;
}

void Scheduler::count_extensions() {
  const auto stays = [&](const Active& job) {
    const auto& old_lease = before_.leases[static_cast<size_t>(job.lease)];
    const auto& new_lease = round_.leases[static_cast<size_t>(job.next_lease)];
    const auto old_devices = before_.devices_of(old_lease), new_devices = round_.devices_of(new_lease);
    if (options_.reference && old_lease.jobs != new_lease.jobs) return false;
    return std::ranges::is_permutation(old_devices, new_devices);
  };
  // A lease counts once, by its first job that is still there.
  for (const auto& job : jobs_) {
    if (job.lease < 0) continue;
    const auto& lease = before_.leases[static_cast<size_t>(job.lease)];
    const bool stayed = job.next_lease >= 0 && stays(job);
    if (!stayed) ++ledger_.jobs[static_cast<size_t>(job.id)].preemptions;
    const bool counted = job.id == lease.jobs[1] && is_active(lease.jobs[0]);
    if (counted) continue;
    ++ledger_.lease_chances;
    ledger_.leases_extended += stayed;
  }
}

bool Scheduler::is_active(int64_t id) const {
  const size_t place = place_of(id);
  return place < jobs_.size() && jobs_[place].id == id;
}

void Scheduler::sample() {
  if (!ledger_.keep_samples) return;
  Sample sample{now_s_, static_cast<int>(jobs_.size()), 0, std::vector<int>(cluster_.types.size(), 0)};
  for (const auto& lease : round_.leases) {
    sample.running += lease.shared() ? 2 : 1;
    sample.busy[static_cast<size_t>(lease.type)] += lease.count;
  }
  ledger_.samples.push_back(std::move(sample));
}

void Scheduler::keep_span(const Lease& lease, const Ended& ended) {
  const auto& [from_s, to_s] = ledger_.keep_spans;
  const double begin_s = lease_began_s_[static_cast<size_t>(ended.lease)];
  if (begin_s >= to_s || ended.at_s <= from_s) return;
  for (int device : round_.devices_of(lease)) {
    ledger_.spans.push_back({begin_s, ended.at_s, lease.jobs[0], lease.jobs[1], device});
  }
}

}  // namespace trireme::fleet
