#include "trireme/train/stage_trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/device/device.h"
#include "trireme/observe/stragglers.h"
#include "trireme/parallel/codec_choice.h"
#include "trireme/parallel/replica_check.h"
#include "trireme/train/teacher.h"

namespace trireme {

namespace {

// Beside a card the host's cores are free; beside the host's own work one thread keeps up, and takes little from it.
int loader_threads(const RunConfig& config, at::Device device) {
  if (config.data.threads > 0) return static_cast<int>(config.data.threads);
  if (device.is_cpu() || config.data.kind == DataKind::custom) return 1;
  return std::clamp(at::get_num_threads() / 2, 1, 8);
}

}  // namespace

StageTrainer::~StageTrainer() = default;

std::string StageTrainer::brief() const {
  const auto replicas = mesh_.even() ? counted(mesh_.replicas(), "replica")
                                     : fmt::format("{} replicas", fmt::join(mesh_.replicas_by_stage, "-"));
  const auto parts = mesh_.stages == 1 ? fmt::format("and {}", counted(std::ssize(store_->buckets()), "bucket"))
                                       : fmt::format("as {} stages of {}", mesh_.stages, replicas);
  const auto trained = model_trained_ == model_parameters_
                           ? std::string()
                           : fmt::format(" ({} trained)", human_count(static_cast<double>(model_trained_)));
  const auto ranks = world_.size() == 1
                         ? "1 rank"
                         : fmt::format("{} ranks by {}", world_.size(), world_.communicator().transport_name());
  return fmt::format("{} parameters{} in {} {} on {}; {}, {} a step",
                     human_count(static_cast<double>(model_parameters_)), trained, counted(model_layers_, "layer"),
                     parts, describe(device_), ranks, counted(config_.train.batch, "sample"));
}

std::function<void()> StageTrainer::work_of(TaskId id, const StepTask& task) {
  const auto c = static_cast<size_t>(task.chunk), i = static_cast<size_t>(task.index);
  switch (task.work) {
    case Work::load: return [this] { load_step(); };
    case Work::receive: {
      const auto kind = task.message.kind;
      if (kind == MessageKind::report) return loose_work_of(id, task);
      auto& flight = flight_of(kind, c, i);
      const auto place = static_cast<size_t>(task.piece);
      const bool back = kind == MessageKind::gradient;
      (back ? flight.returns : flight.arrivals)[place] = id;
      return [this, box = (back ? flight.return_boxes : flight.arrival_boxes)[place]] { postbox_->expect(box); };
    }
    case Work::forward: return [this, c, i] { forward(c, i); };
    case Work::backward: return [this, c, i] { backward(c, i); };
    case Work::weights: return [this, c, i, slice = task.piece] { compute_weights(c, i, slice); };
    case Work::evaluate: return [this, c, i] { evaluate_one(c, i); };
    case Work::sum_bucket: return [this, i] { sync_->send(i); };
    case Work::sum_totals:
      return [this, id] {
        fill_totals();
        sync_->sum_totals(id);
      };
    case Work::sum_totals_before:
      return [this, id] {
        if (!late_.open) return executor_.complete(id);  // they have been given, or there was no step before
        sync_->sum_totals(id);
      };
    case Work::sum_evaluation:
      return [this, id] {
        fill_totals();
        world_.communicator().all_reduce(totals_, ReduceOp::sum, "reduce evaluation", completion(id));
      };
    case Work::measure: return [this, i] { measure(i); };
    case Work::decide: return [this] { decide(); };
    case Work::count: return [this] { count_update(); };
    case Work::update_bucket:
      return [this, i] {
        if (update_) update(i, progression_.updates, lr_, scale_);
      };
    case Work::update_at_once: return [this, i] { update(i, progression_.updates + 1, lr_, 1); };
    case Work::update_and_spread:
      return [this, i] {
        if (update_ && sync_->updates(i)) update(i, progression_.updates, lr_, scale_);
        if (update_) sync_->spread(i);
      };
    default: return loose_work_of(id, task);
  }
}

void StageTrainer::load_step() {
  auto loaded = loader_->next();
  for (auto& chunk : chunks_) {
    for (size_t m = 0; m < pieces_.size(); ++m) {
      auto& flight = chunk.flights[m];
      flight.data = loaded.microbatches[m];
      flight.step = loaded.step;
      flight.items = static_cast<double>(std::max<int64_t>(1, loaded.learnt_targets));
    }
  }
}

void StageTrainer::fill_totals() {
  double squares = 0;
  const bool root = plan_.update == UpdateRule::root;
  for (size_t b = 0; plan_.sums_squares() && b < squares_.size(); ++b) {
    // Of each bucket once.
    const bool mine = root ? sync_->updates(b) : store_->buckets()[b].owned && mesh_.replica_of(world_.rank()) == 0;
    if (mine) squares += squares_[b].item<double>();
  }
  const double loss = loss_sum_.item<double>();
  auto* total = totals_.mutable_data_ptr<double>();
  std::fill(total, total + totals_.numel(), 0.0);
  total[total_loss] = loss;
  total[total_stop] = wants_stop_ ? 1 : 0;
  total[total_squares] = squares;
  total[total_right] = judged_ > 0 ? right_.item<double>() : 0;
  total[total_judged] = static_cast<double>(judged_);
  if (teacher_) total[total_distillation] = distillation_sum_.item<double>();
  // What this stage waited for, the mean over its replicas. Its passes are done; of reductions, what the last step
  // knew.
  auto* idle = total + total_idle + 3 * stage_number();
  const int replicas = mesh_.replicas(stage_number());
  idle[0] = executor_.idle().forward_s / replicas;
  idle[1] = executor_.idle().backward_s / replicas;
  idle[2] = last_reduce_idle_s_ / replicas;
  // What this rank worked for its part of the sums; what it waited for others meanwhile does not count.
  const double waited_s = executor_.idle().total_s() + awaited_s_;
  total[total_idle + 3 * mesh_.stages + world_.rank()] = clock_.now_s() - step_begun_s_ - waited_s;
}

// What the totals say.
void StageTrainer::judge() {
  double squares = 0;
  if (plan_.sums_squares()) {
    squares = totals_[total_squares].item<double>();
  } else {
    // Ahead of the gradients only the norm of the step before is known.
    for (const auto& one : squares_) squares += one.defined() ? one.item<double>() : 0;
  }
  grad_norm_ = std::sqrt(squares);
  stop_agreed_ = totals_[total_stop].item<double>() > 0;
  const double loss = totals_[total_loss].item<double>();
  update_ = std::isfinite(loss) && std::isfinite(grad_norm_);
  progression_.skipped_in_a_row = update_ ? 0 : progression_.skipped_in_a_row + 1;
  if (!update_) ++progression_.skipped;
}

// The totals that are known are of the step before; those of this one are ready to be summed.
void StageTrainer::count_update() {
  ++progression_.updates;
  if (late_.open) {
    judge();
    complete(late_.report);
  }
  fill_totals();
}

void StageTrainer::decide() {
  judge();
  if (update_) ++progression_.updates;
  const double clip = config_.optimizer.clip;
  scale_ = clip > 0 && grad_norm_ > clip ? clip / grad_norm_ : 1;
}

void StageTrainer::catch_up(size_t b) {
  if (sync_->ahead() && !behind_.buckets[b]) return;
  const double begun = clock_.now_s();
  sync_->await(b);
  awaited_s_ += clock_.now_s() - begun;
  if (!sync_->ahead()) return;
  measure(b);
  update(b, behind_.number, behind_.lr, 1);
  behind_.buckets[b] = false;
}

void StageTrainer::catch_up() {
  for (size_t b = 0; b < behind_.buckets.size(); ++b) catch_up(b);
}

void StageTrainer::measure(size_t b) {
  const auto& gradients = store_->buckets()[b].gradients;
  squares_[b] = at::dot(gradients, gradients);
}

void StageTrainer::update(size_t b, int64_t number, double lr, double scale) {
  const DeviceSpan span(&device_trace_, on_card("optimize", static_cast<int64_t>(b)));
  auto& bucket = store_->buckets()[b];
  optimizer_->update(bucket, number, lr, scale);
  ParameterStore::publish(bucket);
}

StepReport StageTrainer::step(bool stop) {
  if (late_.settles) return settle();
  step_begun_s_ = clock_.now_s();
  awaited_s_ = 0;
  const int64_t sent = world_.recorder().sent_bytes();
  if (loose_ && !begun_) loose_->begin();
  begun_ = true;
  const double batches_before = loose_ ? loose_->batches() : 0;
  own_step_ = (loose_ ? loose_->own_steps() : progression_.step) + 1;
  if (!loader_) {
    const SampleOrder order(data_.train->size(), config_.train.batch, static_cast<uint64_t>(config_.train.seed));
    const bool reads = first_ || last_ || config_.data.separator >= 0;
    loader_ = std::make_unique<StepLoader>(
        *data_.train, order, pieces_, own_step_ - 1,
        StepLoaderOptions{.threads = loader_threads(config_, device_), .pinned = device_.is_cuda(), .reads = reads});
  }
  wants_stop_ = stop;
  world_.recorder().set_step(own_step_);
  bear_trial();
  store_->begin_step();
  loss_sum_.zero_();
  distillation_sum_.zero_();
  backwards_ = 0;
  lr_ = learning_rate(config_.optimizer, std::min(own_step_, config_.train.steps), config_.train.steps);
  world_.recorder().memory().begin_most();
  if (!flow_) kept_bytes_ = 0;  // nothing is in flight
  most_kept_bytes_ = largest_flight_bytes_ = 0;
  if (flow_) {
    run_flow_step();
  } else {
    executor_.run(step_graph_, *schedule_);
  }
  device_trace_.settle();
  if (sync_->ahead()) behind_ = {std::vector<bool>(squares_.size(), true), progression_.updates, lr_};
  progression_.step = loose_ ? loose_->job_step() : progression_.step + 1;
  if (loose_) {
    grad_norm_ = loose_->grad_norm();
    update_ = loose_->updated();
    stop_agreed_ = loose_->stop_agreed();
  }

  auto report = own_report(sent, batches_before);
  if (plan_.totals_come_late()) return keep_for_later(std::move(report));
  complete(report);
  return report;
}

// What this rank knows of the step by itself.
StepReport StageTrainer::own_report(int64_t sent_before, double batches_before) {
  StepReport report;
  report.step = progression_.step;
  report.steps = config_.train.steps;
  report.lr = lr_;
  report.step_s = clock_.now_s() - step_begun_s_;
  report.items = data_.train->items();
  const double batches = loose_ ? loose_->batches() - batches_before : 1;
  report.items_per_s =
      batches * static_cast<double>(config_.train.batch * data_.train->items_per_sample()) / report.step_s;
  report.reduce_wait_s = last_reduce_idle_s_ = executor_.idle().reduce_s + awaited_s_;
  tell_traffic(report);
  report.sent_bytes = world_.recorder().sent_bytes() - sent_before;
  auto& memory = world_.recorder().memory();
  report.memory = named(memory.most(device_.is_cuda() ? Memory::card : Memory::host).by_owner);
  if (device_.is_cuda()) report.host_memory = named(memory.most(Memory::host).by_owner);
  return report;
}

// What all ranks know of it together.
void StageTrainer::complete(StepReport& report) {
  report.loss = loose_ ? loose_->loss() : totals_[total_loss].item<double>();
  if (!config_.distill.from.empty() && !loose_) report.distillation = totals_[total_distillation].item<double>();
  report.grad_norm = grad_norm_;
  report.skipped = progression_.skipped;
  if (loose_) {
    report.staleness = loose_->staleness();
    report.batches = loose_->batches();
  } else {
    tell_times(report);
  }
}

// Keeps a step's report until the totals are there, and gives the one before it.
StepReport StageTrainer::keep_for_later(StepReport report) {
  auto before = std::exchange(late_.report, std::move(report));
  if (!late_.open) {  // it has been given
    before.step = progression_.step - 1;
    before.busy_s.clear();
  }
  late_.open = true;
  late_.settles = stop_agreed_ || meets_after(progression_.step);
  return before;
}

StepReport StageTrainer::settle() {
  auto& communicator = world_.communicator();
  communicator.now([&] { return communicator.all_reduce(totals_, ReduceOp::sum, "reduce loss"); });
  late_.open = late_.settles = false;
  judge();
  complete(late_.report);
  return late_.report;
}

// Whether all ranks do something together after this step.
bool StageTrainer::meets_after(int64_t step) const {
  const auto due = [step](int64_t every) { return every > 0 && step % every == 0; };
  return step == config_.train.steps || due(config_.train.eval_every) || due(config_.checkpoint.every) ||
         due(config_.watchdog.replicas);
}

// Who waited for what, as the ranks summed it up.
void StageTrainer::tell_times(StepReport& report) {
  for (int stage = 0; mesh_.stages > 1 && stage < mesh_.stages; ++stage) {
    const auto* idle = totals_.const_data_ptr<double>() + total_idle + 3 * stage;
    report.idle.push_back({idle[0] / report.step_s, idle[1] / report.step_s, idle[2] / report.step_s});
  }
  if (world_.size() > 1) {
    const auto* busy = totals_.const_data_ptr<double>() + total_idle + 3 * mesh_.stages;
    report.busy_s.assign(busy, busy + world_.size());
    report.waits_for = awaited_rank(report.busy_s, mesh_.even() ? mesh_.replicas() : 1);
  }
}

void StageTrainer::bear_trial() const {
  const auto& trial = config_.trial;
  const auto rank = static_cast<size_t>(world_.rank());
  if (rank >= trial.delay_ms.size()) return;
  if (trial.burst > 0 && own_step_ / trial.burst % world_.size() != world_.rank()) return;
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(trial.delay_ms[rank]));
}

void StageTrainer::check_finite(const StepReport& report) const {
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

void StageTrainer::while_whole(const std::function<void()>& save) {
  catch_up();
  if (loose_) return loose_->with_agreed(true, save);
  if (plan_.update == UpdateRule::root) sync_->gather_state(*optimizer_);
  with_statistics(save);
  if (plan_.update == UpdateRule::root) sync_->release_state();
}

OwnState StageTrainer::own_state() {
  if (flow_) return flow_state();
  if (loose_) return loose_->own_state();
  return sums_ ? sums_->own_state() : OwnState{};
}

// What the codec spared and cost in this step.
void StageTrainer::tell_traffic(StepReport& report) {
  auto* sums = this->sums();
  if (!sums || !sums->compresses()) return;
  const auto traffic = sums->take_traffic();
  report.codec = CodecReport{traffic.plain_bytes, traffic.sent_bytes, traffic.codec_s, {}};
  // A pass over all of it: now and then.
  if (codec_.feedback && report.step % config_.log.every == 0 && (together() || plan_.totals_come_late()))
    report.codec->residual_norm = sums->residual_norm();
}

void StageTrainer::check_replicas() {
  catch_up();
  const int replicas = mesh_.replicas(stage_number());
  if (replicas == 1 || (loose_ && !loose_->equal_when_together())) return;
  world_.recorder().compute("compare replicas");
  auto ranks = differing_replicas(*store_, world_.communicator(), groups_.stage);
  if (ranks.empty()) return;
  for (auto& rank : ranks) rank = mesh_.rank_of(stage_number(), rank);
  const auto who = ranks.size() < static_cast<size_t>(replicas)
                       ? fmt::format("rank {} has other parameters than its replicas", fmt::join(ranks, ", "))
                       : fmt::format("ranks {} have different parameters", fmt::join(ranks, ", "));
  fail(
      "step {}: {}, though all replicas must have the same: a processor or memory there may be faulty; continue "
      "from a checkpoint, without that machine",
      progression_.step, who);
}

}  // namespace trireme
