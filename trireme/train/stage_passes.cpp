// The passes of a microbatch through a stage: what comes in, what is computed, what goes out.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "trireme/device/device.h"
#include "trireme/memory/counter.h"
#include "trireme/nn/attention.h"
#include "trireme/train/stage_trainer.h"
#include "trireme/train/teacher.h"

namespace trireme {

namespace {

MessageTag tag_of(const StepMessage& message) {
  return {static_cast<uint16_t>(message.kind), message.way, message.number};
}

}  // namespace

// Where a message comes in, if it comes from another rank; the flight knows the task that waits for it.
void StageTrainer::open_box(MessageKind kind, size_t c, size_t m, size_t i) {
  const bool back = kind == MessageKind::gradient;
  const auto& stage = *chunks_[c].stage;
  const auto message = steps_->message(kind, (back ? stage.outgoing() : stage.incoming())[i], m);
  if (message.from == world_.rank()) return;
  const auto arrived = [this, kind, back, c, m, i](PendingTensor tensor, auto error) {
    auto& flight = flight_of(kind, c, m);
    (back ? flight.gradients : flight.arrived)[i] = std::move(tensor);
    executor_.complete((back ? flight.returns : flight.arrivals)[i], error);
  };
  auto& flight = flight_of(kind, c, m);
  (back ? flight.return_boxes : flight.arrival_boxes)[i] = postbox_->open(message.from, tag_of(message), arrived);
}

// To the rank that needs it, or to another chunk of this one.
void StageTrainer::hand_on(MessageKind kind, const Crossing& crossing, size_t m, const at::Tensor& tensor) {
  const bool back = kind == MessageKind::gradient;
  const int part = back ? crossing.from : crossing.to;
  if (flow_ && flow_->replayed >= 0 && had_passed(part)) return;
  const auto message = steps_->message(kind, crossing, m);
  if (message.to != world_.rank()) return postbox_->send(message.to, tag_of(message), tensor);
  const auto c = static_cast<size_t>(mesh_.chunk_of_part(part));
  const auto& stage = *chunks_[c].stage;
  const auto& crossings = back ? stage.outgoing() : stage.incoming();
  const auto found = std::find(crossings.begin(), crossings.end(), crossing);
  auto& flight = flight_of(kind, c, m);
  (back ? flight.gradients : flight.arrived)[static_cast<size_t>(found - crossings.begin())] = {tensor, {}};
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

Pass StageTrainer::pass_of(const Chunk& chunk, const Flight& flight) const {
  Pass pass;
  pass.training = true;
  pass.dropout =
      Key{static_cast<uint64_t>(config_.train.seed)}.with("dropout").with(static_cast<uint64_t>(flight.step));
  pass.samples = flight.data.positions;
  pass.documents = documents_of(flight.data.starts);
  if (chunk.before_layer) pass.before_layer = &chunk.before_layer;
  if (replicas_) pass.replicas = &replicas_;
  pass.recomputed = recomputed_;
  pass.computed_again = &note_peak_;
  return pass;
}

// Inside a pass, also a backward pass: the gradients that this one signals are queued before and after it in the same
// order on all replicas, because they take their passes in the same order. What it waits is not counted as work.
at::Tensor StageTrainer::gather_replicas(const at::Tensor& given) {
  auto& communicator = world_.communicator();
  const double begun = clock_.now_s();
  auto all = at::empty({mesh_.replicas(), given.numel()}, given.options());
  communicator.now([&] {
    return communicator.all_gather(given.contiguous(), all.view({-1}), "batch statistics", {}, groups_.stage);
  });
  awaited_s_ += clock_.now_s() - begun;
  return all;
}

// Replicas whose BatchNorms saw samples of their own alone are evaluated, and saved, with what the first one remembers.
void StageTrainer::share_buffers() {
  if (mesh_.replicas(stage_number()) == 1 || config_.model.batch_norm == BatchNormKind::synchronised) return;
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

void StageTrainer::forward(size_t c, size_t m) {
  auto& chunk = chunks_[c];
  auto& flight = chunk.flights[m];
  const auto& stage = *chunk.stage;
  if (flow_) flow_->versions.use(flight.version);
  flight.inputs.clear();
  if (stage.first()) flight.inputs.push_back(inputs_of(flight.data.inputs));
  for (auto& message : flight.arrived) flight.inputs.push_back(message.take().detach().requires_grad_(true));
  const int64_t before = held(Owner::activations);
  const auto count = [&] {
    flight.bytes = held(Owner::activations) - before;
    for (const auto& input : flight.inputs) flight.bytes += static_cast<int64_t>(input.nbytes());
    kept_bytes_ += flight.bytes;
    most_kept_bytes_ = std::max(most_kept_bytes_, kept_bytes_);
    largest_flight_bytes_ = std::max(largest_flight_bytes_, flight.bytes);
  };
  const DeviceSpan span(&device_trace_, on_card("forward", static_cast<int64_t>(m)));
  if (deals_statistics()) remember_dealt(chunk, flight.step * numbers_ + number_of(m));
  compute(chunk, flight);
  count();
  for (size_t i = 0; i < flight.outputs.size(); ++i)
    hand_on(MessageKind::activation, stage.outgoing()[i], m, flight.outputs[i].detach());
  finish_pass();
}

// A flight's outputs from its inputs, or in the last part the loss.
void StageTrainer::compute(const Chunk& chunk, Flight& flight) {
  const auto& stage = *chunk.stage;
  flight.outputs = stage.forward(flight.inputs, pass_of(chunk, flight));
  if (!stage.last()) return;
  const auto targets = on_device(flight.data.targets);
  flight.loss = chunk.stage->model().loss(flight.outputs[0], targets);
  if (teacher_) {
    const auto asked = stage.first() ? flight.inputs[0] : inputs_of(flight.data.inputs);
    const auto both = teacher_->add(flight.loss, flight.outputs[0], targets, asked, documents_of(flight.data.starts));
    flight.loss = both.whole;
    flight.distillation = both.distillation;
  }
  flight.outputs.clear();
}

int64_t StageTrainer::held(Owner owner) const {
  return world_.recorder().memory().held(device_.is_cuda() ? Memory::card : Memory::host, owner);
}

// Of what is computed again, on top of what was kept.
void StageTrainer::note_peak() {
  const int64_t gone = backward_began_.activations - held(Owner::activations);
  most_kept_bytes_ = std::max(most_kept_bytes_, kept_bytes_ - gone + held(Owner::working) - backward_began_.working);
}

void StageTrainer::backward(size_t c, size_t m) {
  auto& chunk = chunks_[c];
  auto& flight = chunk.flights[m];
  const auto& stage = *chunk.stage;
  std::vector<at::Tensor> gradients;
  for (auto& message : flight.gradients) gradients.push_back(message.take());
  const DeviceSpan span(&device_trace_, on_card("backward", static_cast<int64_t>(m)));
  if (flow_) {
    flow_->versions.use(flight.version);
  } else if (backwards_++ == 0) {
    sync_->begin_step(own_step_, static_cast<int64_t>(pieces_.size()), sends_);
  }
  const PassScope scope(Owner::working);
  backward_began_ = {held(Owner::activations), held(Owner::working)};
  GradientSync::begin_pass(chunk.parameters);
  if (stage.last()) {
    // The loss is the mean over what is learnt of the global batch: every target weighs the same, whoever has it.
    loss_sum_ += flight.loss.detach() / flight.items;
    if (teacher_) distillation_sum_ += flight.distillation / flight.items;
    flight.loss.backward(at::full({}, 1 / flight.items, flight.loss.options()));
  } else if (flight.outputs[0].requires_grad()) {
    torch::autograd::backward(flight.outputs, gradients);
  }
  gradients.clear();
  for (size_t i = 0; i < stage.incoming().size(); ++i)
    hand_on(MessageKind::gradient, stage.incoming()[i], m, flight.inputs[i].grad());
  flight.inputs.clear();
  flight.outputs.clear();
  flight.loss = at::Tensor();
  flight.data = {};
  if (schedule_->splits()) {
    flight.weights = std::move(weight_gradients_);
    weight_gradients_.writes.clear();
    for (const auto& write : flight.weights.writes) {
      hand_over(write.left, Owner::activations);
      hand_over(write.right, Owner::activations);
    }
    const int64_t left = flight.weights.bytes();
    kept_bytes_ += left - flight.bytes;
    flight.bytes = left;
  } else {
    weight_gradients_.compute(0, weight_gradients_.writes.size());
    weight_gradients_.writes.clear();
    release(flight);
  }
  sync_->end_pass(chunk.parameters);
  if (!flow_ && backwards_ == pieces_.size() * chunks_.size() && !schedule_->splits()) sync_->check_complete();
  finish_pass();
}

void StageTrainer::compute_weights(size_t c, size_t m, int32_t slice) {
  auto& flight = chunks_[c].flights[m];
  const DeviceSpan span(&device_trace_, on_card("weights", static_cast<int64_t>(m)));
  const size_t count = flight.weights.writes.size();
  flight.weights.compute(count * static_cast<size_t>(slice) / weight_slices,
                         count * static_cast<size_t>(slice + 1) / weight_slices);
  if (slice + 1 == weight_slices) {
    flight.weights.writes.clear();
    release(flight);
  }
  finish_pass();
}

void StageTrainer::release(Flight& flight) {
  kept_bytes_ -= flight.bytes;
  flight.bytes = 0;
}

void StageTrainer::build_evaluation() {
  if (!data_.validation || config_.train.eval_batches == 0) return;
  const int64_t wanted = config_.train.eval_batches * config_.train.batch;
  const int64_t samples = std::min(data_.validation->size(), wanted);
  // No more at once than in training.
  const int64_t piece = config_.train.microbatch > 0 ? config_.train.microbatch
                        : mesh_.even()
                            ? std::min(samples_, std::max<int64_t>(1, config_.train.batch / mesh_.replicas()))
                            : pieces_.front().count;
  evaluated_ = deal_batch(config_, mesh_, samples, piece).pieces(world_.rank());
  std::vector<int64_t> all(static_cast<size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  evaluated_items_ = static_cast<double>(std::max<int64_t>(1, data_.validation->learnt_targets(all)));

  for (size_t c = 0; c < chunks_.size(); ++c) make_flights(c, MessageKind::evaluation, evaluated_.size());
  evaluation_graph_ = bind(steps_->evaluation(evaluated_.size()),
                           [this](TaskId id, const StepTask& task) { return work_of(id, task); });
}

void StageTrainer::evaluate_one(size_t c, size_t m) {
  c10::NoGradGuard no_grad;
  const auto& stage = *chunks_[c].stage;
  std::vector<int64_t> places(static_cast<size_t>(evaluated_[m].count));
  for (size_t i = 0; i < places.size(); ++i) places[i] = evaluated_[m].first + static_cast<int64_t>(i);
  Batch batch;
  if (stage.first() || stage.last() || config_.data.separator >= 0) batch = data_.validation->get(places);
  auto& flight = chunks_[c].evaluations[m];
  std::vector<at::Tensor> inputs;
  if (stage.first()) inputs.push_back(inputs_of(batch.inputs));
  for (auto& message : flight.arrived) inputs.push_back(message.take());
  Pass pass;
  pass.documents = documents_of(batch.starts);
  const auto outputs = stage.forward(inputs, pass);
  if (stage.last()) {
    const auto targets = on_device(batch.targets);
    loss_sum_ += chunks_[c].stage->model().loss(outputs[0], targets) / evaluated_items_;
    // One row of scores and one class a sample: it can be told right or wrong.
    if (outputs[0].dim() == 2 && targets.dim() == 1 && targets.scalar_type() == at::kLong) {
      right_ += (outputs[0].argmax(1) == targets).sum();
      judged_ += targets.numel();
    }
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) hand_on(MessageKind::evaluation, stage.outgoing()[i], m, outputs[i]);
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
  if (flow_) flow_->versions.use_masters();
  with_statistics([this] { executor_.run(evaluation_graph_, *schedule_); });
  judged_ = 0;
  report.eval_loss = totals_[total_loss].item<double>();
  const double judged = totals_[total_judged].item<double>();
  if (judged > 0) report.eval_accuracy = totals_[total_right].item<double>() / judged;
}

}  // namespace trireme
