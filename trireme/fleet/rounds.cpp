// What is to run now: shares from the policy when it is time to ask, then jobs by priority, then their devices.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "trireme/base/error.h"
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

void Scheduler::solve_if_due() {
  const bool long_ago = now_s_ - last_reset_s_ >= options_.solve_every_s || last_reset_s_ == 0;
  const bool at_once = !options_.reference && (devices_changed_ || !info_.fills_gaps);
  if (info_.every_round || (jobs_changed_ && (long_ago || at_once))) solve();
}

void Scheduler::solve() {
  book_.settle(now_s_ - last_reset_s_);
  last_reset_s_ = now_s_;
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
  std::vector<size_t> pair_rows, job_rows(jobs_.size());
  for (size_t row = 0; row < book_.rows().size(); ++row) {
    if (!book_.rows()[row].shared()) job_rows[static_cast<size_t>(book_.rows()[row].first)] = row;
  }
  for (size_t place = 0; place < jobs_.size(); ++place) {
    auto& job = jobs_[place];
    if (job.isolated_rate > 0) job.isolated_s += (job.done - job.done_at_solve) / job.isolated_rate;
    job.done_at_solve = job.done;
    view_.jobs[place] = {job.id,         job.scale,
                         job.weight,     job.entity,
                         job.left(),     now_s_ - job.arrival_s,
                         job.isolated_s, job.deadline_at_s - now_s_,
                         job.service_s};
    job.isolated_rate = isolated_rate(job_rows[place], job.scale);
    for (size_t type = 0; type < types; ++type) {
      view_.throughput[place * types + type] = book_.rate(job_rows[place], static_cast<int>(type), 0);
      view_.held[place * types + type] = book_.share(job_rows[place], static_cast<int>(type));
    }
  }
  view_pairs(pair_rows);
  const auto begin = std::chrono::steady_clock::now();
  const auto allocation = policy_->allocate(view_);
  ledger_.solver_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++ledger_.solves;
  if (allocation.alone.size() != jobs_.size() * types ||
      (!allocation.paired.empty() && allocation.paired.size() != pair_rows.size() * types)) {
    fail("policy {} answered for {} and {} shares of {} and {}", info_.name, allocation.alone.size(),
         allocation.paired.size(), jobs_.size() * types, pair_rows.size() * types);
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
  jobs_changed_ = devices_changed_ = false;
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
