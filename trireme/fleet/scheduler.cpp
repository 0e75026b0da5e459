#include "trireme/fleet/scheduler.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

namespace trireme::fleet {

namespace {
constexpr int most_failures = 5;  // in a row; then the reference drops a job
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

Scheduler::Scheduler(const Cluster& cluster, const Throughputs& table, const SchedulerOptions& options)
    : cluster_(cluster),
      table_(table),
      options_(options),
      info_(policy_info(options.policy)),
      policy_(make_policy(options.policy, options.seed)),
      type_shuffler_(options.seed + 5),
      book_(static_cast<int>(cluster.types.size()), options.round_s),
      placement_(cluster) {
  ledger_.busy_s.resize(cluster.devices.size(), 0);
  for (size_t type = 0; type < cluster.types.size(); ++type) {
    view_.types.push_back({cluster.types[type].name, 0, cluster.types[type].cost_per_hour});
  }
  view_.reference = options.reference;
  choose_type_order();
}

void Scheduler::turn(World& world) {
  if (options_.reference && round_.leases.empty() && !more_to_come_) last_reset_s_ = 0;
  happening_.ended.clear();
  happening_.arrived.clear();
  happening_.lost_devices.clear();
  happening_.repaired_devices.clear();
  const bool running = running_ > 0;
  world.wait(running && !options_.reference ? round_end_s_ : infinity, !options_.reference, happening_);
  now_s_ = happening_.now_s;
  more_to_come_ = happening_.more_to_come;
  take_ended();
  take_devices();
  remove_leaving();
  for (const auto& job : happening_.arrived) submit(job);
  ledger_.most_jobs = std::max(ledger_.most_jobs, static_cast<int>(jobs_.size()));

  const bool round_over = running_ == 0 || (!options_.reference && now_s_ >= round_end_s_);
  size_t first = round_.leases.size();
  if (round_over) {
    begin_round();
    first = 0;
  } else {
    fill_idle();
  }
  if (round_.leases.size() > first) world.start(round_, first);

  const bool waits_for_nothing = running_ == 0 && !more_to_come_ && !jobs_.empty();
  idle_turns_ = waits_for_nothing ? idle_turns_ + 1 : 0;
}

void Scheduler::take_ended() {
  // The reference counts a job's time from the end of the round before, idle gaps included.
  if (options_.reference && !happening_.ended.empty()) {
    if (any_round_ended_) round_begin_s_ = round_end_s_;
    round_end_s_ = now_s_;
    any_round_ended_ = true;
  }
  for (const auto& ended : happening_.ended) {
    const auto& lease = round_.leases[static_cast<size_t>(ended.lease)];
    --running_;
    lease_runs_[static_cast<size_t>(ended.lease)] = 0;
    if (options_.reference) {
      take_ended_as_reference(ended, lease);
    } else {
      take_ended_as_measured(ended, lease);
    }
  }
}

// The reference shares a round's steps equally among a job's devices, the last one taking the rest, and takes a device
// without a step for a failure: nothing is credited, and after five in a row the job is dropped.
void Scheduler::take_ended_as_reference(const Ended& ended, const Lease& lease) {
  const double seconds = ended.at_s - round_begin_s_;
  bool failed = seconds <= 0;
  for (int which = 0; which < (lease.shared() ? 2 : 1); ++which) {
    const double steps = ended.steps[static_cast<size_t>(which)], scale = lease.count;
    const double each = scale > 1 ? std::floor(steps / scale) : steps;
    failed = failed || each <= 0 || steps - each * (scale - 1) <= 0;
  }
  if (!failed) {
    if (!lease.shared()) jobs_[place_of(lease.jobs[0])].failures = 0;
    credit(lease, ended, seconds);
    return;
  }
  jobs_changed_ = true;
  if (lease.shared()) return;
  auto& job = jobs_[place_of(lease.jobs[0])];
  if (++job.failures >= most_failures) finish(job, ended.at_s, JobRecord::Outcome::dropped);
}

void Scheduler::take_ended_as_measured(const Ended& ended, const Lease& lease) {
  credit(lease, ended, ended.at_s - lease_began_s_[static_cast<size_t>(ended.lease)]);
  placement_.free(round_.devices_of(lease));
  const bool early = ended.device_lost || now_s_ < round_end_s_;
  for (int which = 0; which < (lease.shared() ? 2 : 1); ++which) {
    auto& job = jobs_[place_of(lease.jobs[static_cast<size_t>(which)])];
    if (early && !job.leaving) {  // its partner is done, or its device is gone: it waits for the next chance
      job.lease = -1;
      ++ledger_.jobs[static_cast<size_t>(job.id)].preemptions;
    }
  }
}

void Scheduler::credit(const Lease& lease, const Ended& ended, double seconds) {
  const auto& type = cluster_.types[static_cast<size_t>(lease.type)];
  for (int which = 0; which < (lease.shared() ? 2 : 1); ++which) {
    auto& job = jobs_[place_of(lease.jobs[static_cast<size_t>(which)])];
    job.done += ended.steps[static_cast<size_t>(which)];
    job.service_s += seconds * lease.count;
    ledger_.jobs[static_cast<size_t>(job.id)].cost += seconds / 3600 * lease.count * type.cost_per_hour;
    const double rounding = options_.reference ? 0 : 1e-9 * job.steps;
    if (job.left() <= rounding) finish(job, ended.at_s, JobRecord::Outcome::finished);
  }
  book_.credit(static_cast<size_t>(lease_rows_[static_cast<size_t>(ended.lease)]), lease.type, seconds);
  for (int device : round_.devices_of(lease)) ledger_.busy_s[static_cast<size_t>(device)] += seconds;
  keep_span(lease, ended);
}

void Scheduler::finish(Active& job, double at_s, JobRecord::Outcome outcome) {
  if (job.leaving) return;
  job.leaving = true;
  any_leaving_ = true;
  ++ended_;
  auto& record = ledger_.jobs[static_cast<size_t>(job.id)];
  record.outcome = outcome;
  record.end_s = at_s;
  record.isolated_s = job.isolated_s;
  if (job.isolated_rate > 0) record.isolated_s += (job.done - job.done_at_solve) / job.isolated_rate;
  record.missed_deadline = at_s > job.deadline_at_s;
  jobs_changed_ = true;
}

void Scheduler::take_devices() {
  for (int device : happening_.lost_devices) {
    placement_.set_usable(device, false);
    ++ledger_.device_losses;
  }
  for (int device : happening_.repaired_devices) placement_.set_usable(device, true);
  if (!happening_.lost_devices.empty() || !happening_.repaired_devices.empty()) {
    jobs_changed_ = true;
    devices_changed_ = true;
  }
}

void Scheduler::remove_leaving() {
  if (!any_leaving_) return;
  any_leaving_ = false;
  new_place_.assign(jobs_.size(), -1);
  size_t kept = 0;
  for (size_t place = 0; place < jobs_.size(); ++place) {
    if (jobs_[place].leaving) {
      demand_ -= jobs_[place].scale;
      continue;
    }
    new_place_[place] = static_cast<int>(kept);
    if (kept != place) jobs_[kept] = jobs_[place];
    ++kept;
  }
  jobs_.resize(kept);
  const auto& new_row = book_.remove(new_place_);
  for (size_t i = 0; i < round_.leases.size(); ++i) {
    if (lease_runs_[i]) lease_rows_[i] = new_row[static_cast<size_t>(lease_rows_[i])];
  }
}

size_t Scheduler::place_of(int64_t id) const {
  const auto place = std::lower_bound(jobs_.begin(), jobs_.end(), id,
                                      [](const Active& job, int64_t wanted) { return job.id < wanted; });
  return static_cast<size_t>(place - jobs_.begin());
}

std::string Scheduler::why_stuck() const {
  std::string names;
  for (size_t i = 0; i < jobs_.size() && i < 5; ++i) {
    const auto& job = jobs_[i];
    names += fmt::format("{}{} ({})", i == 0 ? "" : ", ", ledger_.jobs[static_cast<size_t>(job.id)].name,
                         counted(job.scale, "device"));
  }
  return fmt::format(
      "at {:.0f} s nothing runs and nothing is to come, but {} left: {}{}; policy {} gives them no device on which "
      "they "
      "can run",
      now_s_, jobs_.size() == 1 ? "1 job is" : fmt::format("{} jobs are", jobs_.size()), names,
      jobs_.size() > 5 ? ", …" : "", info_.name);
}

}  // namespace trireme::fleet
