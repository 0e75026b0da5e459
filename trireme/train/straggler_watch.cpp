#include "trireme/train/straggler_watch.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"

namespace trireme {

namespace {

// The host of every rank. Collective.
std::vector<std::string> hosts_of_ranks(World& world) {
  constexpr int64_t longest = 64;
  auto mine = at::zeros({longest}, at::kByte);
  if (gethostname(static_cast<char*>(mine.data_ptr()), longest - 1) != 0) fail_errno("gethostname");
  auto all = at::zeros({world.size() * longest}, at::kByte);
  world.communicator().wait(world.communicator().all_gather(mine, all, "tell the hosts"));
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank)
    hosts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest);
  return hosts;
}

}  // namespace

std::string describe(const Straggler& straggler, const std::string& host, const Mesh& mesh,
                     const std::vector<Share>& shares) {
  const auto others =
      mesh.stages == 1 ? "the others" : fmt::format("the other replicas of stage {}", mesh.stage_of(straggler.rank));
  const auto better = evened(shares, straggler.stage_s);
  const auto advice = better.empty()
                          ? "a batch has too few samples to deal it fewer in proportion (train.batch)"
                          : fmt::format("deal it fewer samples with parallel.shares=[{}]", fmt::join(better, ","));
  return fmt::format(
      "rank {} on host {} keeps {} waiting: it is busy for {} of a step, they for {} ({:.1f} times as long, medians of "
      "{} steps). See what else runs there, or {}",
      straggler.rank, host, others, human_seconds(straggler.busy_s), human_seconds(straggler.others_s),
      straggler.factor(), Stragglers::window, advice);
}

namespace {

// Stages with different numbers of replicas have different numbers of microbatches: nothing to compare.
int compared_replicas(const Mesh& mesh) { return mesh.even() ? mesh.replicas() : 1; }

}  // namespace

StragglerWatch::StragglerWatch(const Plan& plan, World& world)
    : world_(world), mesh_(plan.mesh), shares_(plan.dealing.shares()), stragglers_(compared_replicas(plan.mesh)) {
  if (compared_replicas(plan.mesh) > 1) hosts_ = hosts_of_ranks(world);
}

void StragglerWatch::after(const StepReport& report) {
  if (world_.rank() != 0) return;
  const auto found = stragglers_.step(report.busy_s);
  if (!found) return;
  const auto& host = hosts_[static_cast<size_t>(found->rank)];
  log::warn("{}", describe(*found, host, mesh_, shares_));
  world_.recorder().event("straggler", {{"rank", found->rank},
                                        {"host", host},
                                        {"factor", found->factor()},
                                        {"shares", evened(shares_, found->stage_s)}});
}

}  // namespace trireme
