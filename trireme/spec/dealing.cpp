#include "trireme/spec/dealing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

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

Dealing::Dealing(const Mesh& mesh, int64_t samples, const Options& options)
    : mesh_(mesh), batch_(samples), options_(options) {
  if (!mesh.even()) {
    dealt_ = microbatches({0, samples}, dealt_microbatch(mesh, samples, options.most));
    return;
  }
  shares_ = deal(samples, mesh.replicas(), options.weights);
  if (options.alike) least_ = most_microbatches(shares_, options.most);
}

std::vector<Share> Dealing::pieces(int rank) const {
  const int replica = mesh_.replica_of(rank);
  if (mesh_.even()) return microbatches(shares_[static_cast<size_t>(replica)], options_.most, least_);
  std::vector<Share> mine;
  const auto replicas = static_cast<size_t>(mesh_.replicas(mesh_.stage_of(rank)));
  for (auto b = static_cast<size_t>(replica); b < dealt_.size(); b += replicas) mine.push_back(dealt_[b]);
  return mine;
}

int64_t Dealing::samples(int rank) const {
  const auto mine = pieces(rank);
  return std::accumulate(mine.begin(), mine.end(), int64_t{0}, [](int64_t sum, const Share& one) { return sum + one.count; });
}

int64_t Dealing::largest() const {
  if (!mesh_.even()) return dealt_.empty() ? 0 : dealt_.front().count;
  int64_t most = 0;
  for (const auto& share : shares_) most = std::max(most, share.count);
  return options_.most > 0 ? std::min(options_.most, most) : most;
}

int Dealing::numbers(int rank) const {
  return static_cast<int>(mesh_.even() ? pieces(rank).size() : dealt_.size());
}

std::vector<int> Dealing::all_numbers() const {
  if (!mesh_.even()) return {static_cast<int>(dealt_.size())};
  std::set<int, std::greater<>> counts;
  for (int replica = 0; replica < mesh_.replicas(); ++replica) counts.insert(numbers(mesh_.rank_of(0, replica)));
  return {counts.begin(), counts.end()};
}

int Dealing::number_of(int rank, int own) const {
  return mesh_.even() ? own : own * mesh_.replicas(mesh_.stage_of(rank)) + mesh_.replica_of(rank);
}

int Dealing::own_of(int rank, int number) const {
  return mesh_.even() ? number : number / mesh_.replicas(mesh_.stage_of(rank));
}

int Dealing::holder(int rank, int own, int stage) const {
  if (mesh_.even()) return mesh_.rank_of(stage, mesh_.replica_of(rank));
  return mesh_.rank_of(stage, number_of(rank, own) % mesh_.replicas(stage));
}

std::string Dealing::describe() const {
  if (!mesh_.even()) {
    return fmt::format("the {} microbatches of a step are dealt over the replicas of each stage ({}) in turn",
                       dealt_.size(), fmt::join(mesh_.replicas_by_stage, "-"));
  }
  if (!options_.weights.empty()) {
    std::vector<int64_t> counts;
    for (const auto& share : shares_) counts.push_back(share.count);
    return fmt::format("parallel.shares deals the {} samples of a step to the replicas as {}", batch_,
                       fmt::join(counts, ", "));
  }
  if (batch_ % mesh_.replicas() == 0) return "";
  return fmt::format(
      "train.batch = {} does not divide over {} ranks: some get one sample more, gradients are weighted by samples",
      batch_, mesh_.replicas());
}

Dealing deal_batch(const RunConfig& config, const Mesh& mesh) {
  return deal_batch(config, mesh, config.train.batch, config.train.microbatch);
}

Dealing deal_batch(const RunConfig& config, const Mesh& mesh, int64_t samples, int64_t most) {
  return {mesh, samples, {most, config.parallel.shares, shares_statistics(config.model)}};
}

void check_dealing(const RunConfig& config, const Mesh& mesh, int64_t training_samples) {
  if (!mesh.even()) {
    const int count = deal_batch(config, mesh).all_numbers().front();
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
  if (training_samples < mesh.replicas()) {
    refuse("the data holds {} training samples, fewer than the {} ranks", training_samples, mesh.replicas());
  }
  check_weights(config.train.batch, mesh.replicas(), config.parallel.shares);
}

}  // namespace trireme
