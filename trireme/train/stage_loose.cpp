// The trainer where replicas are kept together loosely (parallel/loose_sync). A replica may be a pipeline: its stages
// then tell each other, at the end of every step, what each knows of it, and so decide alike. Other replicas are not
// waited for there, so what is told are messages and no collective, which would wait for those before it.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

namespace {

constexpr MessageTag report_tag{static_cast<uint16_t>(MessageKind::report), 0, 0};

}  // namespace

void StageTrainer::open_loose() {
  if (LooseSync::sends_messages(plan_.sync.kind)) {
    MailPeers peers;
    for (int other = 0; other < world_.size(); ++other) {
      if (other != world_.rank()) peers.to.push_back(other);
    }
    peers.from = peers.to;
    for (const auto& bucket : store_->buckets())
      peers.message_bytes = std::max(peers.message_bytes, static_cast<int64_t>(bucket.master.nbytes()));
    open_postbox(peers, at::kCPU);
  }
  const OwnerScope scope(Owner::sync);
  const double share = static_cast<double>(samples_) / static_cast<double>(config_.train.batch);
  loose_ = make_loose_sync({config_, world_, *store_, *optimizer_, progression_, postbox_.get(), share, codec_,
                            mesh_.stages, stage_number(), groups_.stage});
  if (mesh_.stages == 1) return;
  pipeline_.boxes.resize(static_cast<size_t>(mesh_.stages));
  pipeline_.told.resize(pipeline_.boxes.size());
  pipeline_.tasks.resize(pipeline_.boxes.size());
  for (int stage = 0; stage < mesh_.stages; ++stage) {
    if (stage == stage_number()) continue;
    const auto s = static_cast<size_t>(stage);
    const int from = mesh_.rank_of(stage, mesh_.replica_of(world_.rank()));
    pipeline_.boxes[s] = postbox_->open(from, report_tag, [this, s](PendingTensor message, std::exception_ptr error) {
      if (!error) pipeline_.told[s] = message.take();
      executor_.complete(pipeline_.tasks[s], error);
    });
  }
}

void StageTrainer::tell_pipeline() {
  c10::NoGradGuard no_grad;
  double squares = 0;
  for (size_t b = 0; b < squares_.size(); ++b) {
    measure(b);
    squares += squares_[b].item<double>();
  }
  const auto own = at::tensor({loss_sum_.item<double>(), squares, wants_stop_ ? 1.0 : 0.0}, at::kDouble);
  pipeline_.told[static_cast<size_t>(stage_number())] = own;
  for (int stage = 0; stage < mesh_.stages; ++stage) {
    if (stage == stage_number()) continue;
    postbox_->send(mesh_.rank_of(stage, mesh_.replica_of(world_.rank())), report_tag, own.to(device_, false, true));
  }
}

std::function<void()> StageTrainer::loose_work_of(TaskId id, const StepTask& task) {
  switch (task.work) {
    case Work::receive: {
      const auto s = static_cast<size_t>(mesh_.stage_of(task.message.from));
      pipeline_.tasks[s] = id;
      return [this, s] { postbox_->expect(pipeline_.boxes[s]); };
    }
    case Work::share_step: return [this] { tell_pipeline(); };
    case Work::gather_step: return [] {};
    case Work::update_loosely: return [this] { update_loosely(); };
    case Work::exchange:
      return [this, id] {
        c10::NoGradGuard no_grad;
        loose_->exchange(completion(id));
      };
    case Work::adopt:
      return [this] {
        c10::NoGradGuard no_grad;
        loose_->adopt();
      };
    default: fail("a step that drains has no such task");
  }
}

void StageTrainer::update_loosely() {
  c10::NoGradGuard no_grad;
  if (mesh_.stages == 1) return loose_->update({own_step_, loss_sum_.item<double>(), wants_stop_, {}});
  auto known = at::zeros({3}, at::kDouble);
  for (const auto& one : pipeline_.told) known.add_(one.cpu());
  loose_->update({own_step_, known[0].item<double>(), known[2].item<double>() > 0, known[1].item<double>()});
}

}  // namespace trireme
