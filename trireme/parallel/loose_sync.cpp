#include "trireme/parallel/loose_sync.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/parallel/loose_kinds.h"

namespace trireme {

LooseSync::LooseSync(const Replica& replica) : replica_(replica), own_steps_(at::zeros({1}, at::kLong)) {}

void LooseSync::begin() {
  // Without a state of its own this rank begins where the job stands.
  if (own_steps() == 0) own_steps_.fill_(replica_.progression.step);
}

int64_t LooseSync::own_steps() const { return own_steps_.item<int64_t>(); }

void LooseSync::count_own(const OwnStep& step) { own_steps_.fill_(step.number); }

bool LooseSync::sends_messages(SyncKind kind) {
  switch (kind) {
    case SyncKind::eager:
    case SyncKind::server:
    case SyncKind::elastic:
    case SyncKind::gossip:
    case SyncKind::hogwild: return true;
    default: return false;
  }
}

bool LooseSync::meets(int64_t step) const {
  const auto& config = replica_.config;
  const auto due = [step](int64_t every) { return every > 0 && step % every == 0; };
  return step == config.train.steps || due(config.train.eval_every) || due(config.checkpoint.every) ||
         due(config.watchdog.replicas);
}

double LooseSync::rate(int64_t step) const {
  const auto& config = replica_.config;
  return learning_rate(config.optimizer, std::min(step, config.train.steps), config.train.steps);
}

bool LooseSync::judge(double squares, double loss, double& scale) {
  auto& progression = replica_.progression;
  grad_norm_ = std::sqrt(squares);
  updated_ = std::isfinite(loss) && std::isfinite(grad_norm_);
  if (!updated_) {
    ++progression.skipped;
    ++progression.skipped_in_a_row;
    return false;
  }
  ++progression.updates;
  progression.skipped_in_a_row = 0;
  const double clip = replica_.config.optimizer.clip;
  scale = clip > 0 && grad_norm_ > clip ? clip / grad_norm_ : 1;
  return true;
}

void LooseSync::apply(int64_t number, double lr, double scale) {
  for (auto& bucket : buckets()) {
    replica_.optimizer.update(bucket, number, lr, scale);
    ParameterStore::publish(bucket);
  }
}

void LooseSync::step_alone(const OwnStep& step, double share_of_rate) {
  const double whole = 1 / replica_.share;
  double scale = 1;
  const double squares = step.squares ? *step.squares : squares_of(gradients());
  if (judge(squares * whole * whole, step.loss, scale))
    apply(replica_.progression.updates, rate(step.number) * share_of_rate, scale * whole);
}

double LooseSync::squares_of(const std::vector<at::Tensor>& tensors) {
  double squares = 0;
  for (const auto& tensor : tensors) squares += at::dot(tensor, tensor).item<double>();
  return squares;
}

std::vector<at::Tensor> LooseSync::gradients() {
  std::vector<at::Tensor> all;
  for (const auto& bucket : buckets()) all.push_back(bucket.gradients);
  return all;
}

std::vector<int64_t> LooseSync::staleness() const {
  std::lock_guard lock(staleness_mutex_);
  return staleness_;
}

void LooseSync::note_staleness(int64_t steps) {
  std::lock_guard lock(staleness_mutex_);
  const auto place = static_cast<size_t>(std::max<int64_t>(0, steps));
  if (staleness_.size() <= place) staleness_.resize(place + 1);
  ++staleness_[place];
}

void LooseSync::with_mean(double weight, const std::function<void()>& use) {
  std::vector<at::Tensor> own;
  for (auto& bucket : buckets()) {
    own.push_back(bucket.master.clone());
    bucket.master.mul_(weight);
    communicator().now([&] {
      return communicator().all_reduce(bucket.master, ReduceOp::sum, "average parameters", {}, replica_.holders);
    });
    ParameterStore::publish(bucket);
  }
  use();
  for (size_t b = 0; b < own.size(); ++b) {
    buckets()[b].master.copy_(own[b]);
    ParameterStore::publish(buckets()[b]);
  }
}

void LooseSync::add_own_parameters(OwnState& state) {
  for (size_t b = 0; b < buckets().size(); ++b) {
    state[fmt::format("bucket-{}.master", b)] = buckets()[b].master;
    for (const auto& [name, tensor] : buckets()[b].state) state[fmt::format("bucket-{}.{}", b, name)] = tensor;
  }
}

std::vector<at::Tensor> like_buckets(Replica& replica) {
  std::vector<at::Tensor> tensors;
  for (const auto& bucket : replica.store.buckets()) {
    const auto& like = bucket.gradients;
    tensors.push_back(replica.world.communicator()
                          .allocate(static_cast<int64_t>(like.nbytes()), replica.holders, like.device())
                          .view(like.scalar_type()));
  }
  return tensors;
}

std::unique_ptr<LooseSync> make_loose_sync(const Replica& replica) {
  switch (replica.config.sync.kind) {
    case SyncKind::stale: return make_stale_sync(replica);
    case SyncKind::eager: return make_eager_sync(replica);
    case SyncKind::local: return make_local_sync(replica);
    case SyncKind::server: return make_server_sync(replica);
    case SyncKind::elastic: return make_elastic_sync(replica);
    case SyncKind::gossip: return make_gossip_sync(replica);
    case SyncKind::hogwild: return make_hogwild_sync(replica);
    default: fail("this kind waits in every step");
  }
}

}  // namespace trireme
