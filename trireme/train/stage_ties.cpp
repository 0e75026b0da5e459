// Parameters that stages of a pipeline share, such as a head tied to the embedding, where the pipeline never drains and
// weights change once a step (pipedream-2bw). Stages come to a step's end at different times, but the first to see what
// it changes are the microbatches of the step after the next. So nobody waits: each stage puts its part of the gradient
// aside, the parts are summed while the next step runs, and all of them make the same change before the first forward
// pass that sees it.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/train/stage_trainer.h"

namespace trireme {

void StageTrainer::open_ties() {
  auto& ties = flow_->ties;
  const OwnerScope scope(Owner::ties);
  // In an order that all who share one know.
  for (size_t tie = 0; tie < ties_.size(); ++tie) {
    for (size_t b = 0; b < store_->buckets().size(); ++b) {
      const auto& bucket = store_->buckets()[b];
      if (bucket.tie != static_cast<int>(tie)) continue;
      const auto size = static_cast<int64_t>(bucket.gradients.nbytes());
      const auto memory = world_.communicator().allocate(size, groups_.of(bucket), device_);
      ties.parts.push_back({b, memory.view(bucket.gradients.scalar_type())});
    }
  }
}

// At the end of a step: the next backward passes write where these gradients are.
void StageTrainer::put_ties_aside() {
  auto& ties = flow_->ties;
  for (auto& part : ties.parts) part.gradients.copy_(store_->buckets()[part.bucket].gradients);
  ties.owed = !ties.parts.empty();
  ties.lr = lr_;
  ties.step = own_step_;
}

void StageTrainer::sum_tie(TaskId task, size_t b) {
  const auto& parts = flow_->ties.parts;
  const auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& one) { return one.bucket == b; });
  if (sums_) return sums_->start(b, part->gradients, flow_->ties.step, "reduce tie", completion(task));
  const Group group = groups_.of(store_->buckets()[b]);
  world_.communicator().all_reduce(part->gradients, ReduceOp::sum, "reduce tie", completion(task), group);
}

// Those who share a tie know no gradient in common but its own: it is clipped by itself.
void StageTrainer::change_ties() {
  c10::NoGradGuard no_grad;
  auto& flow = *flow_;
  auto& ties = flow.ties;
  ties.squares = 0;
  for (size_t tie = 0; tie < ties_.size(); ++tie) {
    std::vector<FlowState::TiePart*> parts;
    double squares = 0;
    for (auto& part : ties.parts) {
      if (store_->buckets()[part.bucket].tie != static_cast<int>(tie)) continue;
      parts.push_back(&part);
      squares += at::dot(part.gradients, part.gradients).item<double>();
    }
    if (parts.empty()) continue;
    const double scale = clipped_scale(flow.scales.front(), squares, ties.step);
    if (store_->buckets()[parts.front()->bucket].owned) ties.squares += squares * std::pow(flow.scales.front(), 2);
    for (auto* part : parts) {
      const DeviceSpan span(&device_trace_, on_card("optimize", static_cast<int64_t>(part->bucket)));
      flow.versions.change(part->bucket, [&](Bucket& bucket) {
        std::swap(bucket.gradients, part->gradients);
        optimizer_->update(bucket, flow.versions.newest(), ties.lr, scale);
        std::swap(bucket.gradients, part->gradients);
      });
    }
  }
  ties.owed = false;
}

// Where all ranks stand together, before anybody looks at the weights.
void StageTrainer::settle_ties() {
  if (!flow_->ties.owed) return;
  awaited_s_ += executor_.idle().reduce_s;  // of the step, which the next run forgets
  Graph graph = bind(steps_->owed_ties(), [this](TaskId id, const StepTask& task) { return flow_work_of(id, task); });
  ListSchedule schedule(schedule_->name(), {});
  executor_.run(graph, schedule);
}

}  // namespace trireme
