// Why a job holds what it holds: the numbers by which the round was made, and a sentence.
#include <algorithm>

#include <fmt/ranges.h>

#include "trireme/fleet/scheduler.h"

namespace trireme::fleet {

std::vector<Scheduler::Explanation> Scheduler::explain() {
  const int types = static_cast<int>(cluster_.types.size());
  std::vector<size_t> row_of(jobs_.size());
  for (size_t row = 0; row < book_.rows().size(); ++row) {
    if (!book_.rows()[row].shared()) row_of[static_cast<size_t>(book_.rows()[row].first)] = row;
  }
  std::vector<Explanation> all(jobs_.size());
  for (size_t place = 0; place < jobs_.size(); ++place) {
    const auto& job = jobs_[place];
    auto& it = all[place];
    it.id = job.id;
    it.name = ledger_.jobs[static_cast<size_t>(job.id)].name;
    it.job_type = table_.kind(job.kind).first;
    it.scale = job.scale;
    it.steps_left = job.left();
    it.age_s = now_s_ - job.arrival_s;
    it.solved = book_.rows()[row_of[place]].solved;
    for (int type : type_order_) {
      Explanation::OnType on;
      on.type = cluster_.types[static_cast<size_t>(type)].name;
      on.rate = book_.rate(row_of[place], type, 0);
      on.share = book_.share(row_of[place], type);
      on.received_s = book_.received(row_of[place], type) - options_.round_s / 2;
      on.deficit_s = book_.deficit(row_of[place], type);
      on.priority = book_.priority(row_of[place], type);
      it.types.push_back(on);
    }
    if (job.lease < 0) continue;
    const auto& lease = round_.leases[static_cast<size_t>(job.lease)];
    const auto devices = round_.devices_of(lease);
    it.devices.assign(devices.begin(), devices.end());
    it.held_type = cluster_.types[static_cast<size_t>(lease.type)].name;
    if (lease.shared()) {
      const int64_t partner = lease.jobs[lease.jobs[0] == job.id ? 1 : 0];
      it.partner = ledger_.jobs[static_cast<size_t>(partner)].name;
    }
  }
  for (int i = 0; i < types; ++i) {
    const auto& order = book_.order(type_order_[static_cast<size_t>(i)], info_.fills_gaps);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      const auto& row = book_.rows()[static_cast<size_t>(order[rank])];
      if (row.shared()) continue;
      auto& on = all[static_cast<size_t>(row.first)].types[static_cast<size_t>(i)];
      on.rank = static_cast<int>(rank) + 1;
      on.candidates = static_cast<int>(order.size());
    }
  }
  for (auto& it : all) it.sentence = sentence_about(it);
  return all;
}

std::string Scheduler::sentence_about(const Explanation& it) const {
  const auto on_type = [&](const std::string& name) {
    return *std::find_if(it.types.begin(), it.types.end(), [&](const auto& on) { return on.type == name; });
  };
  if (!it.devices.empty()) {
    const auto on = on_type(it.held_type);
    std::string text = fmt::format("runs on {} {}", it.held_type, fmt::join(it.devices, ","));
    if (!it.partner.empty()) text += fmt::format(" beside job {}", it.partner);
    if (on.share > 0) {
      text += fmt::format(": the policy gives it {:.0f} % of its time there, and its priority is {} of {}",
                          100 * on.share, on.rank, on.candidates);
    } else if (it.partner.empty()) {
      text += it.solved ? ": it has no share there, and fills a gap that nobody else wants"
                        : ": it is new, and takes devices that were idle";
    }
    return text;
  }
  if (!it.solved && options_.reference)
    return "waits: it came after the policy was asked, and must wait for the next time";
  std::vector<std::string> why;
  for (const auto& on : it.types) {
    const int type = cluster_.type_index(on.type);
    if (on.rate <= 0) {
      why.push_back(fmt::format("it cannot run on {}", on.type));
    } else if (placement_.usable_of(type) < it.scale) {
      why.push_back(fmt::format("{} has {} usable devices", on.type, placement_.usable_of(type)));
    } else if (on.rank == 0) {
      why.push_back(fmt::format("the policy gives it nothing on {}", on.type));
    } else {
      why.push_back(fmt::format("{} {} before it on {}", on.rank - 1, on.rank == 2 ? "comes" : "come", on.type));
    }
  }
  return fmt::format("waits: {}", fmt::join(why, ", "));
}

}  // namespace trireme::fleet
