#include "trireme/train/dealing.h"

#include "trireme/base/error.h"

namespace trireme {

void check_shares(const RunConfig& config, const Dataset& data, const Mesh& mesh) {
  if (mesh.replicas > config.train.batch) {
    refuse("{} ranks cannot share train.batch = {}: give each at least one sample, or start fewer ranks", mesh.replicas,
           config.train.batch);
  }
  if (data.size() < mesh.replicas) {
    refuse("the data holds {} training samples, fewer than the {} ranks", data.size(), mesh.replicas);
  }
  check_weights(config.train.batch, mesh.replicas, config.parallel.shares);
}

std::vector<Share> shares_of(const RunConfig& config, const Mesh& mesh) {
  return deal(config.train.batch, mesh.replicas, config.parallel.shares);
}

Share checked_share(const RunConfig& config, const Dataset& data, const Mesh& mesh, int rank) {
  check_shares(config, data, mesh);
  return shares_of(config, mesh)[static_cast<size_t>(mesh.replica_of(rank))];
}

std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, Share share) {
  const int64_t microbatch = config.train.microbatch;
  const size_t least =
      shares_statistics(config.model) ? most_microbatches(shares_of(config, mesh), microbatch) : size_t{0};
  return microbatches(share, microbatch, least);
}

std::string describe_dealing(const RunConfig& config, const Mesh& mesh) {
  const int64_t batch = config.train.batch;
  if (!config.parallel.shares.empty()) {
    std::vector<int64_t> counts;
    for (const auto& share : shares_of(config, mesh)) counts.push_back(share.count);
    return fmt::format("parallel.shares deals the {} samples of a step to the replicas as {}", batch,
                       fmt::join(counts, ", "));
  }
  if (batch % mesh.replicas == 0) return "";
  return fmt::format(
      "train.batch = {} does not divide over {} ranks: some get one sample more, gradients are weighted by samples",
      batch, mesh.replicas);
}

}  // namespace trireme
