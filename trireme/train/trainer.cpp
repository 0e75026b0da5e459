#include "trireme/train/trainer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/device/device.h"

namespace trireme {

namespace {

enum Total { total_loss, total_stop, totals };

}  // namespace

void check_shares(const RunConfig& config, const Dataset& data, int ranks) {
  if (ranks > config.train.batch) {
    refuse("{} ranks cannot share train.batch = {}: give each at least one sample, or start fewer ranks", ranks,
           config.train.batch);
  }
  if (data.size() < ranks) refuse("the data holds {} training samples, fewer than the {} ranks", data.size(), ranks);
}

Trainer::Trainer(const RunConfig& config, World& world, const Split& data)
    : config_(config),
      world_(world),
      data_(data),
      device_(choose_device(config.train.device == DeviceKind::cuda, world.local_rank())),
      executor_(world.recorder(), schedule_, clock_, &world.communicator()) {
  check_shares(config, *data.train, world.size());
  const int64_t batch = config.train.batch;
  const Share share = share_of(batch, world.rank(), world.size());
  pieces_ = microbatches(share, config.train.microbatch);
  if (batch % world.size() != 0) {
    log::info(
        "train.batch = {} does not divide over {} ranks: some get one sample more, gradients are weighted by samples",
        batch, world.size());
  }
  if (config.train.microbatch > 0 && share.count % config.train.microbatch != 0) {
    log::info("a share of {} samples does not divide into microbatches of {}: the last one is smaller", share.count,
              config.train.microbatch);
  }

  model_ = build_model(config.model, data.train->vocab());
  model_->initialize(static_cast<uint64_t>(config.train.seed));
  store_ = std::make_unique<ParameterStore>(model_->parameters(), config.train.precision, device_,
                                            config.sync.bucket_mb * 1e6,
                                            [&](int64_t bytes) { return world.communicator().allocate(bytes); });
  optimizer_ = make_optimizer(config.optimizer);
  for (auto& bucket : store_->buckets()) optimizer_->prepare(bucket);
  store_->account(world.recorder().memory());
  sync_ = std::make_unique<GradientSync>(*store_, world.communicator(), executor_);
  totals_ = at::zeros({totals}, at::kDouble);
  loss_sum_ = at::zeros({}, at::TensorOptions().device(device_).dtype(at::kDouble));
  squares_.resize(store_->buckets().size());
  build_step();
  build_evaluation();
}

Trainer::~Trainer() = default;

std::string Trainer::brief() const {
  int64_t parameters = 0;
  for (const auto& parameter : model_->parameters()) parameters += parameter->value.numel();
  return fmt::format("{} parameters in {} layers and {} buckets on {}; {} rank(s) by {}, {} samples a step",
                     human_count(static_cast<double>(parameters)), model_->layers.size(), store_->buckets().size(),
                     describe(device_), world_.size(), world_.communicator().transport_name(), config_.train.batch);
}

void Trainer::build_step() {
  auto& graph = step_graph_;
  TaskId previous = graph.add(TaskKind::load, -1, Lane::compute, [this] { loaded_ = loader_->next(); });
  for (size_t m = 0; m < pieces_.size(); ++m) {
    const auto index = static_cast<int32_t>(m);
    previous = graph.add(TaskKind::forward, index, Lane::compute, [this, m] { forward(m); }, {previous});
    previous = graph.add(TaskKind::backward, index, Lane::compute, [this, m] { backward(m); }, {previous});
  }
  sync_->add_tasks(graph);

  // The job's loss, and whether any rank wants to stop, by the same road as the buckets and after them.
  auto reduce_totals = std::make_shared<TaskId>();
  *reduce_totals = graph.add(TaskKind::reduce, -1, Lane::wire,
                             [this, reduce_totals] {
                               totals_[total_loss] = loss_sum_.to(at::kCPU);
                               totals_[total_stop] = wants_stop_ ? 1.0 : 0.0;
                               world_.communicator().all_reduce(totals_, ReduceOp::sum, "reduce loss",
                                                                [this, reduce_totals](std::exception_ptr error) {
                                                                  executor_.complete(*reduce_totals, error);
                                                                });
                             },
                             {previous});

  std::vector<TaskId> before{*reduce_totals};
  for (size_t b = 0; b < squares_.size(); ++b) {
    before.push_back(graph.add(TaskKind::norm, static_cast<int32_t>(b), Lane::compute,
                               [this, b] {
                                 const auto& gradients = store_->buckets()[b].gradients;
                                 squares_[b] = at::dot(gradients, gradients);
                               },
                               {sync_->task_of(b)}));
  }
  const TaskId decision = graph.add(TaskKind::decide, -1, Lane::compute, [this] { decide(); }, before);
  for (size_t b = 0; b < squares_.size(); ++b) {
    graph.add(TaskKind::optimize, static_cast<int32_t>(b), Lane::compute,
              [this, b] {
                if (!update_) return;
                auto& bucket = store_->buckets()[b];
                optimizer_->update(bucket, progression_.updates, lr_, scale_);
                ParameterStore::publish(bucket);
              },
              {decision});
  }
}

Microbatch Trainer::on_device(const Microbatch& microbatch) const {
  Microbatch moved = microbatch;
  const auto type =
      microbatch.inputs.is_floating_point() ? value_type(config_.train.precision) : microbatch.inputs.scalar_type();
  moved.inputs = microbatch.inputs.to(device_, type, /*non_blocking=*/true);
  moved.targets = microbatch.targets.to(device_, /*non_blocking=*/true);
  return moved;
}

void Trainer::forward(size_t m) {
  const auto microbatch = on_device(loaded_.microbatches[m]);
  Pass pass;
  pass.training = true;
  pass.dropout =
      Key{static_cast<uint64_t>(config_.train.seed)}.with("dropout").with(static_cast<uint64_t>(progression_.step));
  pass.samples = microbatch.positions;
  loss_ = cross_entropy_sum(model_->forward(microbatch.inputs, pass), microbatch.targets);
}

void Trainer::backward(size_t m) {
  const bool last = m + 1 == pieces_.size();
  // The loss is the mean over the global batch: every rank's samples weigh the same, however many it has.
  const double items = static_cast<double>(config_.train.batch * data_.train->items_per_sample());
  loss_sum_ += loss_.detach() / items;
  sync_->begin_backward(last);
  loss_.backward(at::full({}, 1 / items, loss_.options()));
  sync_->end_backward(last);
  loss_ = at::Tensor();
  loaded_.microbatches[m] = {};
}

void Trainer::decide() {
  double squares = 0;
  for (const auto& one : squares_) squares += one.item<double>();
  grad_norm_ = std::sqrt(squares);
  stop_agreed_ = totals_[total_stop].item<double>() > 0;
  const double loss = totals_[total_loss].item<double>();
  update_ = std::isfinite(loss) && std::isfinite(grad_norm_);
  if (update_) {
    ++progression_.updates;
    progression_.skipped_in_a_row = 0;
  } else {
    ++progression_.skipped;
    ++progression_.skipped_in_a_row;
  }
  lr_ = learning_rate(config_.optimizer, progression_.step + 1, config_.train.steps);
  const double clip = config_.optimizer.clip;
  scale_ = clip > 0 && grad_norm_ > clip ? clip / grad_norm_ : 1;
}

StepReport Trainer::step(bool stop) {
  const double begun = clock_.now_s();
  const int64_t sent = world_.recorder().sent_bytes();
  if (!loader_) {
    const SampleOrder order(data_.train->size(), config_.train.batch, static_cast<uint64_t>(config_.train.seed));
    loader_ = std::make_unique<Loader>(*data_.train, order, share_of(config_.train.batch, world_.rank(), world_.size()),
                                       config_.train.microbatch, progression_.step);
  }
  wants_stop_ = stop;
  world_.recorder().set_step(progression_.step + 1);
  store_->begin_step();
  loss_sum_.zero_();
  executor_.run(step_graph_);
  ++progression_.step;

  StepReport report;
  report.step = progression_.step;
  report.steps = config_.train.steps;
  report.loss = totals_[total_loss].item<double>();
  report.grad_norm = grad_norm_;
  report.lr = lr_;
  report.step_s = clock_.now_s() - begun;
  report.items = data_.train->items();
  report.items_per_s = static_cast<double>(config_.train.batch * data_.train->items_per_sample()) / report.step_s;
  report.skipped = progression_.skipped;
  report.reduce_wait_s = executor_.idle_s();
  report.sent_bytes = world_.recorder().sent_bytes() - sent;
  report.memory = world_.recorder().memory().by_owner();
  return report;
}

void Trainer::check_finite(const StepReport& report) const {
  if (update_) return;
  const auto shown = [](double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); };  // no sign
  const int64_t limit = config_.train.nonfinite_limit;
  if (progression_.skipped_in_a_row > limit) {
    fail(
        "step {}: loss {}, gradient norm {}: not finite for {} steps in a row (train.nonfinite_limit = {}); lower "
        "optimizer.lr, or use a wider train.precision",
        report.step, shown(report.loss), shown(report.grad_norm), progression_.skipped_in_a_row, limit);
  }
  log::warn("step {} skipped: loss {}, gradient norm {} are not finite", report.step, shown(report.loss),
            shown(report.grad_norm));
}

void Trainer::build_evaluation() {
  if (!data_.validation || config_.train.eval_batches == 0) return;
  const int64_t wanted = config_.train.eval_batches * config_.train.batch;
  const int64_t samples = std::min(data_.validation->size(), wanted);
  const Share share = share_of(samples, world_.rank(), world_.size());
  const int64_t piece = config_.train.microbatch > 0 ? config_.train.microbatch
                                                     : std::max<int64_t>(1, config_.train.batch / world_.size());
  evaluated_ = microbatches(share, piece);

  auto& graph = evaluation_graph_;
  std::vector<TaskId> before;
  for (size_t m = 0; m < evaluated_.size(); ++m) {
    before.push_back(graph.add(TaskKind::evaluate, static_cast<int32_t>(m), Lane::compute, [this, m, samples] {
      c10::NoGradGuard no_grad;
      std::vector<int64_t> places(static_cast<size_t>(evaluated_[m].count));
      for (size_t i = 0; i < places.size(); ++i) places[i] = evaluated_[m].first + static_cast<int64_t>(i);
      const auto batch = data_.validation->get(places);
      const auto microbatch = on_device({batch.inputs, batch.targets, {}});
      const double items = static_cast<double>(samples * data_.validation->items_per_sample());
      loss_sum_ += cross_entropy_sum(model_->forward(microbatch.inputs, {}), microbatch.targets) / items;
    }));
  }
  auto reduce = std::make_shared<TaskId>();
  *reduce = graph.add(
      TaskKind::reduce, -1, Lane::wire,
      [this, reduce] {
        totals_[total_loss] = loss_sum_.to(at::kCPU);
        world_.communicator().all_reduce(
            totals_, ReduceOp::sum, "reduce evaluation loss",
            [this, reduce](std::exception_ptr error) { executor_.complete(*reduce, error); });
      },
      before);
}

std::optional<double> Trainer::evaluate() {
  if (evaluation_graph_.size() == 0) return std::nullopt;
  loss_sum_.zero_();
  executor_.run(evaluation_graph_);
  return totals_[total_loss].item<double>();
}

}  // namespace trireme
