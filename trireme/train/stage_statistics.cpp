// Running statistics of replicas that are dealt microbatches in turn. One rank would take them in one after another,
//
//   r ← (1 - α) r + α x_b,     so that after M of them     r = (1 - α)^M r_0 + Σ_b α (1 - α)^(M-1-b) x_b.
//
// Each replica keeps the terms of its own microbatches, and the first one that of r_0 too: before it takes one in, what
// it has decays for those that others were dealt meanwhile. The sum over the replicas is what one rank would have.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "trireme/nn/batch_norm.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

namespace {

void decay(const BufferList& buffers, int64_t microbatches) {
  const double kept = std::pow(1 - batch_norm_momentum, static_cast<double>(microbatches));
  for (const auto& buffer : buffers) {
    if (buffer->value.is_floating_point()) buffer->value.mul_(kept);
  }
}

}  // namespace

bool StageTrainer::deals_statistics() const {
  return !mesh_.even() && mesh_.replicas(stage_number()) > 1 && !model_->buffers().empty();
}

void StageTrainer::remember_dealt(Chunk& chunk, int64_t number) {
  c10::NoGradGuard no_grad;
  const auto buffers = chunk.stage->model().buffers();
  const int replica = mesh_.replica_of(world_.rank());
  if (chunk.remembered < 0) {
    // Where the run begins, or goes on: all replicas have all of it.
    chunk.remembered = progression_.step * numbers_;
    for (const auto& buffer : buffers) {
      if (replica > 0) buffer->value.zero_();
    }
  }
  decay(buffers, number - chunk.remembered);
  chunk.remembered = number + 1;
}

void StageTrainer::with_statistics(const std::function<void()>& use) {
  if (!deals_statistics()) {
    share_buffers();
    return use();
  }
  c10::NoGradGuard no_grad;
  auto& communicator = world_.communicator();
  for (auto& chunk : chunks_) {
    if (chunk.remembered < 0) continue;
    const auto buffers = chunk.stage->model().buffers();
    decay(buffers, progression_.step * numbers_ - chunk.remembered);
    for (const auto& buffer : buffers) {
      communicator.now(
          [&] { return communicator.all_reduce(buffer->value, ReduceOp::sum, "sum statistics", {}, groups_.stage); });
    }
    chunk.remembered = -1;
  }
  use();
}

}  // namespace trireme
