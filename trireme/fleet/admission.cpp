// A job comes to the scheduler: can it ever run here, and by what rates?
#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "trireme/base/error.h"
#include "trireme/base/words.h"
#include "trireme/fleet/scheduler.h"

namespace trireme::fleet {

// A type of which nothing is known is a slip of the pen, not a job that came to the wrong cluster.
void Scheduler::refuse_unknown(const Job& job) const {
  if (!table_.knows_type(job.type)) {
    const auto meant = nearest(job.type, table_.type_names());
    refuse("{}: job {}: {} has no throughputs of \"{}\"{}", job.place, job.name, table_.source(), job.type,
           meant.empty() ? "" : fmt::format(", did you mean \"{}\"?", meant));
  }
  const int kind = table_.find_kind(job.type, job.scale);
  for (size_t type = 0; kind >= 0 && type < cluster_.types.size(); ++type) {
    if (table_.alone(kind, static_cast<int>(type)) != Throughputs::not_given) continue;
    refuse("{}: job {}: {} has no throughput of \"{}\" on {} {} (0 says that it cannot run there)", job.place, job.name,
           table_.source(), job.type, job.scale, cluster_.types[type].name);
  }
}

double Scheduler::rate_on(const Job& job, int kind, size_t type) const {
  const double memory = cluster_.types[type].memory_gb;
  if (memory > 0 && job.memory_gb > memory) return 0;
  return table_.alone(kind, static_cast<int>(type));
}

// Empty when the job can run.
std::string Scheduler::impossible(const Job& job, int kind) const {
  if (kind < 0)
    return fmt::format("{} has no throughput of \"{}\" on {}", table_.source(), job.type, counted(job.scale, "device"));
  double best = 0;
  bool fits = false, runs = false;
  for (size_t type = 0; type < cluster_.types.size(); ++type) {
    const bool fits_here = cluster_.devices_of(static_cast<int>(type)) >= job.scale;
    const double rate = rate_on(job, kind, type);
    fits = fits || fits_here;
    runs = runs || rate > 0;
    if (fits_here) best = std::max(best, rate);
  }
  if (!fits)
    return fmt::format("it wants {} of one type, and the cluster is {}", counted(job.scale, "device"),
                       cluster_.brief());
  if (!runs && job.memory_gb > 0) {
    return fmt::format("it needs {} GB of each device, and no type on which it can run has so much", job.memory_gb);
  }
  if (!runs) return fmt::format("its throughput is 0 on every type of the cluster ({})", cluster_.brief());
  if (best == 0)
    return fmt::format("no type on which it can run has {} ({})", counted(job.scale, "device"), cluster_.brief());
  const double alone_s = job.steps / best;
  const double deadline_s = job.slo > 0 ? std::min(job.deadline_s, job.slo * alone_s) : job.deadline_s;
  if (!options_.reference && alone_s > deadline_s) {
    return fmt::format("its deadline is {:.0f} s after its arrival, and alone on the fastest devices it takes {:.0f} s",
                       deadline_s, alone_s);
  }
  return "";
}

void Scheduler::submit(const Job& job) {
  refuse_unknown(job);
  const int kind = table_.find_kind(job.type, job.scale);
  if (static_cast<int64_t>(ledger_.jobs.size()) != job.id) {
    fail("job {} came with number {}, and {} was to come", job.name, job.id, ledger_.jobs.size());
  }
  auto& record = ledger_.jobs.emplace_back();
  record.name = job.name;
  record.arrival_s = job.arrival_s;
  if (const auto why = impossible(job, kind); !why.empty()) {
    if (options_.reference) refuse("{}: job {} can never run: {}", job.place, job.name, why);
    record.outcome = JobRecord::Outcome::rejected;
    record.reason = fmt::format("{}: {}", job.place, why);
    ++ended_;
    return;
  }
  Active active;
  active.id = job.id;
  active.kind = kind;
  active.scale = job.scale;
  active.weight = job.weight;
  active.arrival_s = job.arrival_s;
  active.steps = job.steps;
  const auto owner =
      std::find_if(owners_.begin(), owners_.end(), [&](const Owner& known) { return known.name == job.owner; });
  active.entity = static_cast<int>(owner - owners_.begin());
  if (owner == owners_.end()) owners_.push_back({job.owner});
  rates_.resize(cluster_.types.size());
  double best = 0;
  for (size_t type = 0; type < rates_.size(); ++type) {
    rates_[type] = rate_on(job, kind, type);
    best = std::max(best, rates_[type]);
  }
  const double after_s = job.slo > 0 ? std::min(job.deadline_s, job.slo * job.steps / best) : job.deadline_s;
  active.deadline_at_s = job.arrival_s + after_s;
  record.has_deadline = std::isfinite(after_s);
  demand_ += job.scale;
  record.demand_at_arrival = demand_;
  jobs_.push_back(active);
  const size_t row = book_.rows().size();
  add_rows(static_cast<int>(jobs_.size()) - 1);
  jobs_.back().isolated_rate = isolated_rate(row, job.scale);
  jobs_changed_ = true;
}

void Scheduler::add_rows(int place) {
  const auto& job = jobs_[static_cast<size_t>(place)];
  book_.add(place, job.scale, rates_.data());
  if (!info_.shares_devices) return;
  const size_t types = cluster_.types.size();
  std::vector<double> older_rates(types), newer_rates(types);
  for (int other = 0; other < place; ++other) {
    const auto& older = jobs_[static_cast<size_t>(other)];
    if (older.scale != job.scale) continue;
    bool somewhere = false;
    for (size_t type = 0; type < types; ++type) {
      const auto both = table_.together(older.kind, job.kind, static_cast<int>(type));
      older_rates[type] = both[0];
      newer_rates[type] = both[1];
      somewhere = somewhere || (both[0] > 0 && both[1] > 0);
    }
    if (somewhere) book_.add_pair(other, place, job.scale, older_rates.data(), newer_rates.data());
  }
}

}  // namespace trireme::fleet
