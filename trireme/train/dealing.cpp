#include "trireme/train/dealing.h"

#include <algorithm>
#include <set>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// Of a microbatch that is dealt over all replicas: their most numerous stage gets at most as many samples as if the
// batch were shared.
int64_t dealt_microbatch(const Mesh& mesh, int64_t samples, int64_t most) {
  if (most > 0) return most;
  const int replicas = *std::max_element(mesh.replicas_by_stage.begin(), mesh.replicas_by_stage.end());
  return std::max<int64_t>(1, (samples + replicas - 1) / replicas);
}

}  // namespace

void check_shares(const RunConfig& config, const Dataset& data, const Mesh& mesh) {
  if (!mesh.even()) {
    const auto count = microbatch_counts(config, mesh).front();
    for (int stage = 0; stage < mesh.stages; ++stage) {
      if (count >= mesh.replicas(stage)) continue;
      refuse(
          "the {} replicas of stage {} cannot share the {} microbatches of a step: raise train.batch, or lower "
          "train.microbatch",
          mesh.replicas(stage), stage, count);
    }
    return;
  }
  if (mesh.replicas() > config.train.batch) {
    refuse("{} ranks cannot share train.batch = {}: give each at least one sample, or start fewer ranks",
           mesh.replicas(), config.train.batch);
  }
  if (data.size() < mesh.replicas()) {
    refuse("the data holds {} training samples, fewer than the {} ranks", data.size(), mesh.replicas());
  }
  check_weights(config.train.batch, mesh.replicas(), config.parallel.shares);
}

std::vector<Share> shares_of(const RunConfig& config, const Mesh& mesh) {
  return deal(config.train.batch, mesh.replicas(), config.parallel.shares);
}

std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, int rank, int64_t samples, int64_t most) {
  const int replica = mesh.replica_of(rank);
  if (mesh.even()) {
    const auto shares = deal(samples, mesh.replicas(), config.parallel.shares);
    const size_t least = shares_statistics(config.model) ? most_microbatches(shares, most) : size_t{0};
    return microbatches(shares[static_cast<size_t>(replica)], most, least);
  }
  const auto all = microbatches({0, samples}, dealt_microbatch(mesh, samples, most));
  std::vector<Share> mine;
  const auto replicas = static_cast<size_t>(mesh.replicas(mesh.stage_of(rank)));
  for (auto b = static_cast<size_t>(replica); b < all.size(); b += replicas) mine.push_back(all[b]);
  return mine;
}

std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, int rank) {
  return pieces_of(config, mesh, rank, config.train.batch, config.train.microbatch);
}

std::vector<int> microbatch_counts(const RunConfig& config, const Mesh& mesh) {
  std::set<int> counts;
  if (mesh.even()) {
    for (int replica = 0; replica < mesh.replicas(); ++replica)
      counts.insert(static_cast<int>(pieces_of(config, mesh, mesh.rank_of(0, replica)).size()));
  } else {
    const int64_t batch = config.train.batch;
    counts.insert(
        static_cast<int>(microbatches({0, batch}, dealt_microbatch(mesh, batch, config.train.microbatch)).size()));
  }
  return {counts.begin(), counts.end()};
}

std::string describe_dealing(const RunConfig& config, const Mesh& mesh) {
  const int64_t batch = config.train.batch;
  if (!mesh.even()) {
    return fmt::format("the {} microbatches of a step are dealt over the replicas of each stage ({}) in turn",
                       microbatch_counts(config, mesh).front(), fmt::join(mesh.replicas_by_stage, "-"));
  }
  if (!config.parallel.shares.empty()) {
    std::vector<int64_t> counts;
    for (const auto& share : shares_of(config, mesh)) counts.push_back(share.count);
    return fmt::format("parallel.shares deals the {} samples of a step to the replicas as {}", batch,
                       fmt::join(counts, ", "));
  }
  if (batch % mesh.replicas() == 0) return "";
  return fmt::format(
      "train.batch = {} does not divide over {} ranks: some get one sample more, gradients are weighted by samples",
      batch, mesh.replicas());
}

}  // namespace trireme
