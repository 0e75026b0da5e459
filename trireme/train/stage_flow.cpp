// The trainer where the pipeline never drains: a step ends when its microbatches have come back, while those of the
// next one are on their way already. No rank waits for all others at the end of a step. Rank 0, where a step ends last,
// is told by the others what it was like; what it decides (to stop) the others obey so many steps later that nobody
// waits for it.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/train/stage_trainer.h"

namespace trireme {

namespace {

// Of the small messages about steps.
MessageTag tag_of(MessageKind kind) { return {static_cast<uint16_t>(kind), 0, 0}; }

}  // namespace

void StageTrainer::open_flow() {
  const auto K = static_cast<int64_t>(pieces_.size());
  const int stage = stage_number(), replicas = mesh_.replicas(stage);
  flow_ = std::make_unique<FlowState>(FlowState{plan_.flow_of(world_.rank()), WeightVersions(*store_)});
  auto& flow = *flow_;
  if (plan_.schedule_options.predict > 0) {
    flow.versions.predict(plan_.schedule_options.predict * static_cast<double>(flow.plan.delay()));
  }
  flow.total = K * config_.train.steps;
  // Of each round, the samples that the stage's replicas learn from.
  std::vector<int64_t> samples(static_cast<size_t>(flow.plan.rounds()), 0);
  for (int replica = 0; replica < replicas; ++replica) {
    const auto pieces = plan_.dealing.pieces(mesh_.rank_of(stage, replica));
    for (size_t m = 0; m < pieces.size(); ++m) samples[flow.plan.changes_once() ? 0 : m] += pieces[m].count;
  }
  for (const int64_t count : samples)
    flow.scales.push_back(static_cast<double>(config_.train.batch) / static_cast<double>(count));
  flow.lr_share = flow.plan.changes_once() ? 1 : static_cast<double>(replicas) / mesh_.replicas(0);
  flow.lag = flow.plan.steps_in_flight();

  make_flights(0, MessageKind::activation, static_cast<size_t>(flow.plan.steps_in_flight() * K));
  open_ties();
  open_reports();
}

// Small messages about steps: to rank 0, and back.
void StageTrainer::open_reports() {
  auto& flow = *flow_;
  const auto open = [this](int from, MessageKind kind, at::Tensor& place, TaskId& task) {
    return postbox_->open(from, tag_of(kind), [this, &place, &task](PendingTensor message, auto error) {
      if (!error) place = message.take();
      executor_.complete(task, error);
    });
  };
  if (mesh_.ranks() == 1) return;
  if (world_.rank() != 0) {
    flow.orders = open(0, MessageKind::order, flow.ordered, flow.order_task);
    return;
  }
  flow.told.resize(static_cast<size_t>(world_.size()));
  flow.told_tasks.resize(flow.told.size());
  flow.tellers.resize(flow.told.size());
  for (int rank = 1; rank < world_.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    flow.tellers[r] = open(rank, MessageKind::report, flow.told[r], flow.told_tasks[r]);
  }
}

// The graph of a step with so many forward passes, which are built once for each number that occurs.
StageTrainer::FlowStep& StageTrainer::flow_step(bool obeys) {
  auto& flow = *flow_;
  const auto actions = flow.plan.actions(flow.forwarded, flow.returned, flow.total);
  const int64_t lead = flow.forwarded - flow.returned;
  const auto forwards = static_cast<int64_t>(actions.size()) - flow.plan.per_step();
  const auto [entry, fresh] = flow.steps.try_emplace({forwards, lead, obeys ? 1 : 0, flow.ties.owed ? 1 : 0});
  auto& step = entry->second;
  if (!fresh) return step;
  step.schedule = std::make_unique<ListSchedule>(schedule_->name(), actions);
  step.forwards = forwards;
  step.tasks = steps_->flow_step({flow.forwarded, flow.returned, flow.total, obeys, flow.ties.owed});
  step.graph = bind(step.tasks, [this](TaskId id, const StepTask& task) { return flow_work_of(id, task); });
  return step;
}

std::function<void()> StageTrainer::flow_work_of(TaskId id, const StepTask& task) {
  const auto i = static_cast<size_t>(task.index), place = static_cast<size_t>(task.piece);
  switch (task.work) {
    case Work::load: return [this] { load_ahead(flow_->running->forwards); };
    case Work::receive:
      switch (task.message.kind) {
        case MessageKind::activation:
          return [this, i, place] { postbox_->expect(setting_out(i).arrival_boxes[place]); };
        case MessageKind::gradient:
          return [this, i, place] { postbox_->expect(coming_back(i).return_boxes[place]); };
        case MessageKind::report:
          return [this, from = static_cast<size_t>(task.message.from)] { postbox_->expect(flow_->tellers[from]); };
        default: return [this] { postbox_->expect(flow_->orders); };
      }
    case Work::forward: return [this, j = task.index] { flow_forward(j); };
    case Work::backward: return [this, k = task.index] { flow_backward(k); };
    case Work::sum_bucket:
      // What stages share is summed a step later.
      if (task.sum.group == StepSum::Group::own) return [this, id] { executor_.complete(id); };
      return [this, i] { sync_->send(i); };
    case Work::update_round: return [this, i] { flow_update(i); };
    case Work::sum_tie: return [this, id, i] { sum_tie(id, i); };
    case Work::update_ties: return [this] { change_ties(); };
    case Work::report: return [this] { report_flow(); };
    default: fail("a step that never drains has no such task");
  }
}

// Says, before a step runs, which of its tasks waits for a message.
void StageTrainer::expect_at(TaskId id, const StepTask& task) {
  const auto i = static_cast<size_t>(task.index), place = static_cast<size_t>(task.piece);
  switch (task.message.kind) {
    case MessageKind::activation: setting_out(i).arrivals[place] = id; break;
    case MessageKind::gradient: coming_back(i).returns[place] = id; break;
    case MessageKind::report: flow_->told_tasks[static_cast<size_t>(task.message.from)] = id; break;
    default: flow_->order_task = id;
  }
}

// The flights of the microbatches that pass in a step, in its own numbers.
StageTrainer::Flight& StageTrainer::setting_out(size_t j) {
  return chunks_.front().flights[slot_of(flow_->forwarded + static_cast<int64_t>(j))];
}

StageTrainer::Flight& StageTrainer::coming_back(size_t k) {
  return chunks_.front().flights[slot_of(flow_->returned + static_cast<int64_t>(k))];
}

size_t StageTrainer::slot_of(int64_t microbatch) const {
  return static_cast<size_t>(microbatch) % chunks_.front().flights.size();
}

void StageTrainer::load_ahead(int64_t forwards) {
  auto& flow = *flow_;
  const int64_t K = flow.plan.per_step();
  while (!flow.loaded.empty() && flow.loaded.front().step < flow.forwarded / K) flow.loaded.pop_front();
  if (forwards == 0) return;
  const int64_t needed = (flow.forwarded + forwards - 1) / K;
  while (flow.loaded.empty() || flow.loaded.back().step < needed) flow.loaded.push_back(loader_->next());
}

// A microbatch sets out: its samples, and the weights that it sees.
void StageTrainer::flow_forward(int64_t j) {
  auto& flow = *flow_;
  const int64_t number = flow.forwarded + j, K = flow.plan.per_step();
  auto& flight = chunks_.front().flights[slot_of(number)];
  auto& loaded = flow.loaded[static_cast<size_t>(number / K - flow.loaded.front().step)];
  flight.data = std::move(loaded.microbatches[static_cast<size_t>(number % K)]);
  flight.step = loaded.step;
  flight.items = static_cast<double>(std::max<int64_t>(1, loaded.learnt_targets));
  flight.version = std::max(flow.versions.oldest(), flow.plan.version_of(number, flow.versions.newest()));
  flow.versions.hold(flight.version);
  flow.next = number + 1;
  forward(0, slot_of(number));
}

void StageTrainer::flow_backward(int64_t k) {
  auto& flow = *flow_;
  const bool begins = k == 0 || !flow.plan.changes_once();
  if (begins) {
    store_->begin_step();
    sync_->begin_step(flow.versions.newest() + 1, flow.plan.changes_once() ? flow.plan.per_step() : 1,
                      flow.running->tasks.rounds[flow.plan.changes_once() ? 0 : static_cast<size_t>(k)]);
  }
  const size_t slot = slot_of(flow.returned + k);
  backward(0, slot);
  flow.versions.release(chunks_.front().flights[slot].version);
}

// The stage changes its weights by the mean over the samples of a round. It knows no other stage's gradient: what is
// clipped is its own.
void StageTrainer::flow_update(size_t round) {
  c10::NoGradGuard no_grad;
  auto& flow = *flow_;
  sync_->check_complete();
  double squares = 0;
  for (size_t b = 0; b < squares_.size(); ++b) {
    if (store_->buckets()[b].tie >= 0) continue;
    measure(b);
    squares += squares_[b].item<double>();
  }
  const double scale = clipped_scale(flow.scales[round], squares, own_step_);
  flow.squares = squares * std::pow(flow.scales[round], 2);
  // What the next forward pass, and so every later one, sees, or something newer.
  flow.versions.keep_from(flow.plan.changes_once() ? flow.versions.newest()
                                                   : flow.plan.version_of(flow.next, flow.versions.newest() + 1));
  flow.versions.advance();
  put_ties_aside();
  for (size_t b = 0; b < store_->buckets().size(); ++b) {
    if (store_->buckets()[b].tie >= 0) continue;
    const DeviceSpan span(&device_trace_, on_card("optimize", static_cast<int64_t>(b)));
    flow.versions.change(
        b, [&](Bucket& bucket) { optimizer_->update(bucket, flow.versions.newest(), lr_ * flow.lr_share, scale); });
  }
}

// By what gradients are multiplied, whose squares are so many before that.
double StageTrainer::clipped_scale(double scale, double squares, int64_t step) const {
  const double norm = scale * std::sqrt(squares), clip = config_.optimizer.clip;
  if (!std::isfinite(norm)) {
    fail(
        "step {}: the gradient of stage {} is not finite, and a pipeline that does not drain cannot skip a step; lower "
        "optimizer.lr, or use a wider train.precision",
        step, stage_number());
  }
  return clip > 0 && norm > clip ? scale * clip / norm : scale;
}

// What this rank knows of the step goes to rank 0, which makes the report and decides.
void StageTrainer::report_flow() {
  auto& flow = *flow_;
  fill_totals();
  auto* total = totals_.mutable_data_ptr<double>();
  // Of what stages share, the last that is known.
  total[total_squares] = mesh_.replica_of(world_.rank()) == 0 ? flow.squares + flow.ties.squares : 0;
  if (world_.rank() != 0) {
    postbox_->send(0, tag_of(MessageKind::report), totals_.to(device_, /*non_blocking=*/false, /*copy=*/true));
    stop_agreed_ = flow.ordered.defined() && flow.ordered.item<double>() > 0;
    return;
  }
  for (size_t r = 1; r < flow.told.size(); ++r) totals_.add_(flow.told[r].cpu());
  grad_norm_ = std::sqrt(totals_[total_squares].item<double>());
  const double stop = totals_[total_stop].item<double>();
  for (int rank = 1; rank < world_.size(); ++rank)
    postbox_->send(rank, tag_of(MessageKind::order), at::full({}, stop, at::TensorOptions().dtype(at::kDouble).device(device_)));
  flow.decided.push_back(stop > 0);
  const auto age = static_cast<int64_t>(flow.decided.size()) - 1 - flow.lag;
  stop_agreed_ = mesh_.ranks() == 1 ? stop > 0 : age >= 0 && flow.decided[static_cast<size_t>(age)];
}

void StageTrainer::run_flow_step() {
  auto& flow = *flow_;
  // Weights may have come from elsewhere since the trainer was made.
  if (flow.steps_done == 0 && flow.forwarded == 0) flow.versions.restore(flow.versions.newest(), {});
  if (flow.replays) replay();
  const bool obeys = flow.steps_done >= flow.lag;
  auto& step = flow_step(obeys);
  flow.running = &step;
  for (size_t id = 0; id < step.tasks.tasks.size(); ++id) {
    const auto& task = step.tasks.tasks[id];
    if (task.work == Work::receive) expect_at(static_cast<TaskId>(id), task);
  }
  executor_.run(step.graph, *step.schedule);
  flow.forwarded += step.forwards;
  flow.returned += flow.plan.per_step();
  ++flow.steps_done;
  progression_.updates = flow.versions.newest();
  if (world_.rank() != 0) totals_.fill_(std::numeric_limits<double>::quiet_NaN());  // rank 0 knows
  flow.together = stop_agreed_ || meets_after(own_step_);
  if (!flow.together) return;
  settle_ties();
  flow.versions.use_masters();
}

}  // namespace trireme
