// The passes of a microbatch through a stage: what comes in, what is computed, what goes out.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "trireme/device/counted_memory.h"
#include "trireme/device/device.h"
#include "trireme/nn/attention.h"
#include "trireme/train/dealing.h"
#include "trireme/train/stage_trainer.h"
#include "trireme/train/teacher.h"

namespace trireme {

// For a microbatch, the waits for what other stages send: activations before a forward pass, gradients before a
// backward pass.
std::vector<TaskId> StageTrainer::add_receives(Graph& graph, uint16_t kind, size_t m) {
  std::vector<TaskId> tasks;
  const bool back = kind == gradient;
  const auto& crossings = back ? stage_->outgoing() : stage_->incoming();
  const int replica = mesh_.replica_of(world_.rank());
  for (size_t i = 0; i < crossings.size(); ++i) {
    const int from = mesh_.rank_of(back ? crossings[i].to : crossings[i].from, replica);
    const MessageTag tag{kind, crossings[i].part, static_cast<int32_t>(m)};
    auto task = std::make_shared<TaskId>();
    const auto box = postbox_->open(from, tag, [this, task, m, i, back](PendingTensor message, auto error) {
      auto& flight = flights_[m];
      (back ? flight.gradients : flight.arrived)[i] = std::move(message);
      executor_.complete(*task, error);
    });
    *task = graph.add(TaskKind::receive, static_cast<int32_t>(m), Lane::wire, [this, box] { postbox_->expect(box); });
    tasks.push_back(*task);
  }
  return tasks;
}

at::Tensor StageTrainer::on_device(const at::Tensor& tensor) const {
  const auto type = tensor.is_floating_point() ? value_type(config_.train.precision) : tensor.scalar_type();
  // From pinned memory, so that the copy takes its turn on the card and not on this thread.
  return (device_.is_cuda() ? tensor.pin_memory() : tensor).to(device_, type, /*non_blocking=*/true);
}

at::Tensor StageTrainer::inputs_of(const at::Tensor& inputs) const {
  const auto decoded = data_.train->decode(on_device(inputs));
  return decoded.is_floating_point() ? decoded.to(value_type(config_.train.precision)) : decoded;
}

Documents StageTrainer::documents_of(const at::Tensor& starts) const {
  return starts.defined() ? documents_from(on_device(starts)) : Documents{};
}

Pass StageTrainer::pass_of(const Microbatch& microbatch) const {
  Pass pass;
  pass.training = true;
  pass.dropout =
      Key{static_cast<uint64_t>(config_.train.seed)}.with("dropout").with(static_cast<uint64_t>(own_step_ - 1));
  pass.samples = microbatch.positions;
  pass.documents = documents_of(microbatch.starts);
  if (before_layer_) pass.before_layer = &before_layer_;
  if (replicas_) pass.replicas = &replicas_;
  return pass;
}

// Inside a pass, also a backward pass: the gradients that this one signals are queued before and after it in the same
// order on all replicas, because they take their passes in the same order. What it waits is not counted as work.
at::Tensor StageTrainer::gather_replicas(const at::Tensor& given) {
  auto& communicator = world_.communicator();
  const double begun = clock_.now_s();
  auto all = at::empty({mesh_.replicas, given.numel()}, given.options());
  communicator.now([&] {
    return communicator.all_gather(given.contiguous(), all.view({-1}), "batch statistics", {}, groups_.stage);
  });
  awaited_s_ += clock_.now_s() - begun;
  return all;
}

// Replicas whose BatchNorms saw samples of their own alone are evaluated, and saved, with what the first one remembers.
void StageTrainer::share_buffers() {
  if (mesh_.replicas == 1 || config_.model.batch_norm == BatchNormKind::synchronised) return;
  auto& communicator = world_.communicator();
  for (const auto& buffer : model().buffers())
    communicator.now([&] { return communicator.broadcast(buffer->value, 0, "share buffers", {}, groups_.stage); });
}

TraceSpan StageTrainer::on_card(const char* what, int64_t index) const {
  return {.track = TraceTrack::card, .name = what, .index = index, .step = world_.recorder().step()};
}

// Only the pass that was given last may still be waiting on the card when the next one is chosen.
void StageTrainer::finish_pass() {
  if (!device_.is_cuda() || !settles_) return;
  DeviceEvent pass;
  pass.record(device_);
  last_pass_.wait();
  last_pass_ = std::move(pass);
}

void StageTrainer::forward(size_t m) {
  auto& flight = flights_[m];
  const int64_t before = counted_bytes();
  const auto count = [&] {
    flight.bytes = counted_bytes() - before;
    for (const auto& input : flight.inputs) flight.bytes += static_cast<int64_t>(input.nbytes());
    kept_bytes_ += flight.bytes;
    most_kept_bytes_ = std::max(most_kept_bytes_, kept_bytes_);
    largest_flight_bytes_ = std::max(largest_flight_bytes_, flight.bytes);
  };
  auto& microbatch = loaded_.microbatches[m];
  flight.inputs.clear();
  if (stage_->first()) flight.inputs.push_back(inputs_of(microbatch.inputs));
  for (auto& message : flight.arrived) flight.inputs.push_back(message.take().detach().requires_grad_(true));
  const DeviceSpan span(&device_trace_, on_card("forward", static_cast<int64_t>(m)));
  flight.outputs = stage_->forward(flight.inputs, pass_of(microbatch));
  if (stage_->last()) {
    const auto targets = on_device(microbatch.targets);
    flight.loss = stage_->model().loss(flight.outputs[0], targets);
    if (teacher_) {
      const auto asked = stage_->first() ? flight.inputs[0] : inputs_of(microbatch.inputs);
      const auto both = teacher_->add(flight.loss, flight.outputs[0], targets, asked, documents_of(microbatch.starts));
      flight.loss = both.whole;
      flight.distillation = both.distillation;
    }
    flight.outputs.clear();
  }
  count();
  const int replica = mesh_.replica_of(world_.rank());
  for (size_t i = 0; i < flight.outputs.size(); ++i) {
    const auto& crossing = stage_->outgoing()[i];
    postbox_->send(mesh_.rank_of(crossing.to, replica), {activation, crossing.part, static_cast<int32_t>(m)},
                   flight.outputs[i].detach());
  }
  finish_pass();
}

void StageTrainer::backward(size_t m) {
  auto& flight = flights_[m];
  std::vector<at::Tensor> gradients;
  for (auto& message : flight.gradients) gradients.push_back(message.take());
  const DeviceSpan span(&device_trace_, on_card("backward", static_cast<int64_t>(m)));
  const bool last = ++backwards_ == pieces_.size();
  sync_->begin_backward(last);
  if (stage_->last()) {
    // The loss is the mean over what is learnt of the global batch: every target weighs the same, whoever has it.
    const double items = static_cast<double>(std::max<int64_t>(1, loaded_.learnt_targets));
    loss_sum_ += flight.loss.detach() / items;
    if (teacher_) distillation_sum_ += flight.distillation / items;
    flight.loss.backward(at::full({}, 1 / items, flight.loss.options()));
  } else if (flight.outputs[0].requires_grad()) {
    torch::autograd::backward(flight.outputs, gradients);
  }
  gradients.clear();
  const int replica = mesh_.replica_of(world_.rank());
  for (size_t i = 0; i < stage_->incoming().size(); ++i) {
    const auto& crossing = stage_->incoming()[i];
    postbox_->send(mesh_.rank_of(crossing.from, replica), {gradient, crossing.part, static_cast<int32_t>(m)},
                   flight.inputs[i].grad());
  }
  weight_gradients_.compute();
  sync_->end_backward(last);
  flight.inputs.clear();
  flight.outputs.clear();
  flight.loss = at::Tensor();
  kept_bytes_ -= flight.bytes;
  loaded_.microbatches[m] = {};
  finish_pass();
}

void StageTrainer::build_evaluation() {
  if (!data_.validation || config_.train.eval_batches == 0) return;
  const int64_t wanted = config_.train.eval_batches * config_.train.batch;
  const int64_t samples = std::min(data_.validation->size(), wanted);
  const Share share = share_of(samples, mesh_.replica_of(world_.rank()), mesh_.replicas, config_.parallel.shares);
  // No more at once than in training.
  const int64_t piece = config_.train.microbatch > 0
                            ? config_.train.microbatch
                            : std::min(share_.count, std::max<int64_t>(1, config_.train.batch / mesh_.replicas));
  evaluated_ = microbatches(share, piece);
  std::vector<int64_t> all(static_cast<size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  evaluated_items_ = static_cast<double>(std::max<int64_t>(1, data_.validation->learnt_targets(all)));
  if (flights_.size() < evaluated_.size()) flights_.resize(evaluated_.size());

  auto& graph = evaluation_graph_;
  std::vector<TaskId> before;
  for (size_t m = 0; m < evaluated_.size(); ++m) {
    const auto arrived = add_receives(graph, evaluation, m);
    before.push_back(
        graph.add(TaskKind::evaluate, static_cast<int32_t>(m), Lane::compute, [this, m] { evaluate_one(m); }, arrived));
  }
  auto task = std::make_shared<TaskId>();
  const auto sum = [this, task] {
    fill_totals();
    world_.communicator().all_reduce(totals_, ReduceOp::sum, "reduce evaluation",
                                     [this, task](std::exception_ptr error) { executor_.complete(*task, error); });
  };
  *task = graph.add(TaskKind::reduce, -1, Lane::wire, sum, before);
}

void StageTrainer::evaluate_one(size_t m) {
  c10::NoGradGuard no_grad;
  std::vector<int64_t> places(static_cast<size_t>(evaluated_[m].count));
  for (size_t i = 0; i < places.size(); ++i) places[i] = evaluated_[m].first + static_cast<int64_t>(i);
  Batch batch;
  if (stage_->first() || stage_->last() || config_.data.separator >= 0) batch = data_.validation->get(places);
  auto& flight = flights_[m];
  std::vector<at::Tensor> inputs;
  if (stage_->first()) inputs.push_back(inputs_of(batch.inputs));
  for (auto& message : flight.arrived) inputs.push_back(message.take());
  Pass pass;
  pass.documents = documents_of(batch.starts);
  const auto outputs = stage_->forward(inputs, pass);
  if (stage_->last()) {
    const auto targets = on_device(batch.targets);
    loss_sum_ += stage_->model().loss(outputs[0], targets) / evaluated_items_;
    // One row of scores and one class a sample: it can be told right or wrong.
    if (outputs[0].dim() == 2 && targets.dim() == 1 && targets.scalar_type() == at::kLong) {
      right_ += (outputs[0].argmax(1) == targets).sum();
      judged_ += targets.numel();
    }
    return;
  }
  const int replica = mesh_.replica_of(world_.rank());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& crossing = stage_->outgoing()[i];
    postbox_->send(mesh_.rank_of(crossing.to, replica), {evaluation, crossing.part, static_cast<int32_t>(m)},
                   outputs[i]);
  }
}

void StageTrainer::evaluate(StepReport& report) {
  if (evaluation_graph_.size() == 0) return;
  if (!loose_) return evaluate_now(report);
  c10::NoGradGuard no_grad;
  loose_->with_agreed(false, [&] { evaluate_now(report); });
}

void StageTrainer::evaluate_now(StepReport& report) {
  loss_sum_.zero_();
  right_ = at::zeros_like(loss_sum_);
  catch_up();
  share_buffers();
  executor_.run(evaluation_graph_, *schedule_);
  judged_ = 0;
  report.eval_loss = totals_[total_loss].item<double>();
  const double judged = totals_[total_judged].item<double>();
  if (judged > 0) report.eval_accuracy = totals_[total_right].item<double>() / judged;
}

}  // namespace trireme
