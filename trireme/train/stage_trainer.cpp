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

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/device/counted_memory.h"
#include "trireme/device/device.h"
#include "trireme/observe/stragglers.h"
#include "trireme/parallel/codec_choice.h"
#include "trireme/parallel/replica_check.h"
#include "trireme/train/dealing.h"
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

StageTrainer::StageTrainer(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> model)
    : config_(config),
      world_(world),
      data_(data),
      mesh_(make_mesh(config.parallel, world.size())),
      pieces_(pieces_of(config, mesh_, world.rank())),
      samples_(std::accumulate(pieces_.begin(), pieces_.end(), int64_t{0},
                               [](int64_t sum, const Share& piece) { return sum + piece.count; })),
      dealt_(microbatch_counts(config, mesh_).front()),
      device_(choose_device(config.train.device == DeviceKind::cuda, world.local_rank())),
      device_trace_(device_, world.recorder()),
      executor_(world.recorder(), clock_, &carriers_) {
  count_memory();
  check_shares(config, *data.train, mesh_);
  if (const auto dealt = describe_dealing(config, mesh_); !dealt.empty()) log::info("{}", dealt);
  if (config.train.microbatch > 0 && samples_ % config.train.microbatch != 0) {
    log::info("a share of {} samples does not divide into microbatches of {}: the last one is smaller", samples_,
              config.train.microbatch);
  }

  if (!model) model = build_model(config.model, data.train->vocab());
  const auto table = model->table(static_cast<int64_t>(at::elementSize(value_type(config.train.precision))));
  model_parameters_ = model_trained_ = table.parameters();
  for (const auto& layer : table.layers) model_trained_ -= layer.frozen;
  model_layers_ = static_cast<int64_t>(table.layers.size());
  for (size_t i = 0; i + 1 < table.layers.size(); ++i)
    widest_crossing_ = std::max(widest_crossing_, table.layers[i].output * table.element_bytes);
  take_parts(*model, part_begins(table, config.parallel, mesh_));
  model.reset();  // the rest is let go before it takes up memory
  model_->initialize(static_cast<uint64_t>(config.train.seed));
  model_->buffers_to(master_type(config.train.precision), device_);
  schedule_ = make_schedule(config.parallel.schedule,
                            place_of(mesh_, stage_number(), mesh_.replica_of(world.rank()),
                                     mesh_.even() ? static_cast<int>(pieces_.size()) : static_cast<int>(dealt_)),
                            schedule_options(config.parallel));
  // Choices that depend on what has come must be made on what is there. And processes take turns on a card: one that
  // waits there for another's work would be given its turns for nothing.
  settles_ = schedule_->follows_arrivals() || shares_card(device_, world.local_size());
  const double bucket_bytes = std::min(config.sync.bucket_mb * 1e6, static_cast<double>(table.parameters()) * 4);
  codec_ = chosen_codec(config, world, static_cast<int64_t>(bucket_bytes));
  join_groups();
  const auto allocate = [&](int64_t bytes, int tie) {
    const Group group = tie < 0 ? groups_.stage : groups_.ties[static_cast<size_t>(tie)];
    return world.communicator().allocate(bytes, group, device_);
  };
  store_ = std::make_unique<ParameterStore>(model_->parameters(), config.train.precision, device_,
                                            config.sync.bucket_mb * 1e6, allocate);
  optimizer_ = make_optimizer(config.optimizer);
  totals_ = at::zeros({totals_length()}, at::kDouble);
  if (codec_.kind != CodecKind::none && !is_loose(config.sync.kind)) {
    sums_ = std::make_unique<BucketSums>(codec_, static_cast<uint64_t>(config.train.seed), *store_,
                                         world.communicator(), world.recorder(), sum_groups_.of(store_->buckets()));
  }
  sync_ = std::make_unique<GradientSync>(config.sync, *store_, world.communicator(), groups_, executor_, totals_,
                                         sums_.get());
  for (size_t b = 0; b < store_->buckets().size(); ++b) {
    if (sync_->updates(b)) optimizer_->prepare(store_->buckets()[b]);
  }
  store_->account(world.recorder().memory());
  for (auto& chunk : chunks_) {
    // Nobody waits for what the first part gives back: its weights' gradients are put off only where the schedule does.
    if (chunk.stage->first() && !schedule_->splits()) continue;
    for (const auto& parameter : chunk.parameters) parameter->gradient.deferred = &weight_gradients_;
  }
  if (is_loose(config.sync.kind)) open_loose();
  if (config.sync.kind == SyncKind::root || sync_->ahead()) find_layers();
  if (shares_statistics(config.model) && mesh_.even() && mesh_.replicas() > 1)
    replicas_ = [this](const at::Tensor& given) { return gather_replicas(given); };
  if (!config.distill.from.empty() && last_) {
    teacher_ = std::make_unique<Teacher>(config, data.train->vocab(), device_);
    world.recorder().memory().set("teacher", teacher_->bytes());
  }
  loss_sum_ = at::zeros({}, at::TensorOptions().device(device_).dtype(at::kDouble));
  distillation_sum_ = at::zeros_like(loss_sum_);
  squares_.resize(store_->buckets().size());
  behind_.buckets.resize(store_->buckets().size());
  for (auto& chunk : chunks_) make_flights(chunk, chunk.flights, pieces_.size());
  eager_ = config.sync.kind == SyncKind::allreduce && config.optimizer.clip == 0 && config.train.nonfinite_limit == 0;
  if (trireme::never_drains(config.parallel.schedule)) {
    open_flow();
  } else {
    build_step();
  }
  build_evaluation();
}

StageTrainer::~StageTrainer() = default;

// The parts of the model that this rank holds, and all their layers as one model.
void StageTrainer::take_parts(const Model& whole, const std::vector<int64_t>& begins) {
  ties_ = find_ties(whole, begins, mesh_, stage_number());
  model_ = std::make_unique<Model>();
  for (int c = 0; c < mesh_.chunks; ++c) {
    auto& chunk = chunks_.emplace_back();
    chunk.stage = std::make_unique<Stage>(whole, begins, mesh_.part_of(stage_number(), c));
    auto& part = chunk.stage->model();
    chunk.parameters = part.parameters();
    model_->layers.insert(model_->layers.end(), part.layers.begin(), part.layers.end());
    first_ |= chunk.stage->first();
    last_ |= chunk.stage->last();
  }
}

void StageTrainer::make_flights(const Chunk& chunk, std::vector<Flight>& flights, size_t count) {
  flights.resize(count);
  for (auto& flight : flights) {
    flight.arrived.resize(chunk.stage->incoming().size());
    flight.arrivals.resize(flight.arrived.size());
    flight.gradients.resize(chunk.stage->outgoing().size());
    flight.returns.resize(flight.gradients.size());
  }
}

// The replicas of a stage, the stages that share parameters, and the ways between neighbouring stages.
void StageTrainer::join_groups() {
  auto& communicator = world_.communicator();
  carriers_.communicator = &communicator;
  const int stage = stage_number();
  const bool compresses = codec_.kind != CodecKind::none && !is_loose(config_.sync.kind);
  if (compresses) sum_groups_.stage = communicator.split(stage);
  if (mesh_.stages == 1) return;
  groups_.stage = communicator.split(stage);
  for (const auto& tie : ties_) {
    const bool shares = std::find(tie.stages.begin(), tie.stages.end(), stage) != tie.stages.end();
    groups_.ties.push_back(communicator.split(shares ? 0 : -1));
    if (compresses) sum_groups_.ties.push_back(communicator.split(shares ? 0 : -1));
  }
  MailPeers peers;
  std::set<int> ranks;
  for (const auto& chunk : chunks_) {
    for (size_t m = 0; m < pieces_.size(); ++m) {
      for (const auto& crossing : chunk.stage->incoming()) ranks.insert(holder_of(activation, crossing.from, m));
      for (const auto& crossing : chunk.stage->outgoing()) ranks.insert(holder_of(activation, crossing.to, m));
    }
  }
  for (int rank = 0; trireme::never_drains(config_.parallel.schedule) && rank < world_.size(); ++rank) {
    if (rank == 0 || world_.rank() == 0) ranks.insert(rank);  // reports
  }
  ranks.erase(world_.rank());
  peers.from.assign(ranks.begin(), ranks.end());
  peers.to = peers.from;  // gradients go back the way that activations came
  peers.message_bytes = std::max(widest_crossing_ * pieces_.front().count, 8 * totals_length());
  open_postbox(peers, device_);
}

void StageTrainer::open_postbox(const MailPeers& given, at::Device device) {
  MailPeers peers = given;
  peers.device = device;
  peers.trace = &device_trace_;
  postbox_ =
      std::make_unique<Postbox>(world_.communicator().open_mail(peers), world_.recorder(),
                                PostboxOptions{world_.rank(), device, config_.comm.jitter_ms * 1e-3,
                                               static_cast<uint64_t>(config_.train.seed + world_.rank()), settles_});
  carriers_.postbox = postbox_.get();
}

void StageTrainer::open_loose() {
  if (LooseSync::sends_messages(config_.sync.kind)) {
    MailPeers peers;
    for (int other = 0; other < world_.size(); ++other) {
      if (other != world_.rank()) peers.to.push_back(other);
    }
    peers.from = peers.to;
    for (const auto& bucket : store_->buckets())
      peers.message_bytes = std::max(peers.message_bytes, static_cast<int64_t>(bucket.master.nbytes()));
    open_postbox(peers, at::kCPU);
  }
  const double share = static_cast<double>(samples_) / static_cast<double>(config_.train.batch);
  loose_ = make_loose_sync({config_, world_, *store_, *optimizer_, progression_, postbox_.get(), share, codec_});
}

std::string StageTrainer::brief() const {
  const auto replicas =
      mesh_.even() ? std::to_string(mesh_.replicas()) : fmt::format("{}", fmt::join(mesh_.replicas_by_stage, "-"));
  const auto parts = mesh_.stages == 1 ? fmt::format("and {} buckets", store_->buckets().size())
                                       : fmt::format("as {} stages of {} replica(s)", mesh_.stages, replicas);
  const auto trained = model_trained_ == model_parameters_
                           ? std::string()
                           : fmt::format(" ({} trained)", human_count(static_cast<double>(model_trained_)));
  return fmt::format("{} parameters{} in {} layers {} on {}; {} rank(s) by {}, {} samples a step",
                     human_count(static_cast<double>(model_parameters_)), trained, model_layers_, parts,
                     describe(device_), world_.size(), world_.communicator().transport_name(), config_.train.batch);
}

void StageTrainer::build_step() {
  auto& graph = step_graph_;
  const TaskId load = graph.add(TaskKind::load, -1, Lane::compute, [this] { load_step(); });
  const std::vector<TaskId> passes = add_passes(graph, load);
  if (loose_) return build_loose_tail(passes);
  sends_ = sync_->add_tasks(graph);

  // The job's loss and norm, and whether any rank wants to stop, by the same road as the buckets and after them.
  auto task = std::make_shared<TaskId>();
  const auto sum = [this, task] {
    fill_totals();
    sync_->sum_totals(*task);
  };
  *task = graph.add(TaskKind::reduce, -1, Lane::wire, sum, passes);
  std::vector<TaskId> before{*task};
  std::vector<TaskId> norms;
  for (size_t b = 0; b < squares_.size(); ++b) {
    const auto index = static_cast<int32_t>(b);
    if (!sync_->updates(b) || sync_->ahead()) continue;
    norms.push_back(graph.add(TaskKind::norm, index, Lane::compute, [this, b] { measure(b); }, {sends_[b]}));
    // An eager update comes before the decision that counts it.
    const auto change = [this, b] { update(b, progression_.updates + 1, lr_, 1); };
    if (eager_) graph.add(TaskKind::optimize, index, Lane::compute, change, {norms.back()});
    // Where each rank knows a part of the gradient, its norm is summed with the rest. Otherwise it is known here.
    if (sums_squares()) graph.add_dependency(*task, norms.back());
  }
  before.insert(before.end(), norms.begin(), norms.end());
  const TaskId decision = graph.add(TaskKind::decide, -1, Lane::compute, [this] { decide(); }, before);
  if (eager_) return;
  if (config_.sync.kind == SyncKind::root) {
    // One after another: what is sent leaves in the same order on all ranks.
    TaskId last = decision;
    for (const size_t b : sync_->spread_order()) {
      const auto change = [this, b] {
        if (update_ && sync_->updates(b)) update(b, progression_.updates, lr_, scale_);
        if (update_) sync_->spread(b);
      };
      last = graph.add(TaskKind::optimize, static_cast<int32_t>(b), Lane::compute, change, {last});
    }
    return;
  }
  for (size_t b = 0; b < squares_.size(); ++b) {
    graph.add(TaskKind::optimize, static_cast<int32_t>(b), Lane::compute,
              [this, b] {
                if (update_) update(b, progression_.updates, lr_, scale_);
              },
              {decision});
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

// All forward and backward passes; the tasks after which a microbatch has left nothing to do.
std::vector<TaskId> StageTrainer::add_passes(Graph& graph, TaskId load) {
  std::vector<TaskId> ends;
  Passes forwards(chunks_.size()), backwards(chunks_.size());
  const auto add = [&](TaskKind kind, size_t c, size_t m, std::function<void()> work, std::vector<TaskId> before) {
    return graph.add(kind, static_cast<int32_t>(m), Lane::compute, std::move(work), before, 0, static_cast<int32_t>(c));
  };
  for (size_t c = 0; c < chunks_.size(); ++c) {
    for (size_t m = 0; m < pieces_.size(); ++m) {
      auto before = add_arrivals(graph, activation, c, m, forwards);
      before.push_back(load);
      forwards[c].push_back(add(TaskKind::forward, c, m, [this, c, m] { forward(c, m); }, before));
    }
  }
  for (size_t c = chunks_.size(); c-- > 0;) {
    for (size_t m = 0; m < pieces_.size(); ++m) {
      auto before = add_arrivals(graph, gradient, c, m, backwards);
      before.push_back(forwards[c][m]);
      backwards[c].push_back(add(TaskKind::backward, c, m, [this, c, m] { backward(c, m); }, before));
      ends.push_back(backwards[c].back());
      for (int32_t i = 0; schedule_->splits() && i < weight_slices; ++i)
        ends.back() = add(TaskKind::weights, c, m, [this, c, m, i] { compute_weights(c, m, i); }, {ends.back()});
    }
  }
  return ends;
}

void StageTrainer::build_loose_tail(const std::vector<TaskId>& passes) {
  auto& graph = step_graph_;
  const auto update = [this] {
    c10::NoGradGuard no_grad;
    loose_->update({own_step_, loss_sum_.item<double>(), wants_stop_});
  };
  const TaskId updated = graph.add(TaskKind::optimize, -1, Lane::compute, update, passes);
  auto task = std::make_shared<TaskId>();
  const auto exchange = [this, task] {
    c10::NoGradGuard no_grad;
    loose_->exchange([this, task](std::exception_ptr error) { executor_.complete(*task, error); });
  };
  *task = graph.add(TaskKind::reduce, -1, Lane::wire, exchange, {updated});
  const auto adopt = [this] {
    c10::NoGradGuard no_grad;
    loose_->adopt();
  };
  graph.add(TaskKind::decide, -1, Lane::compute, adopt, {*task});
}

void StageTrainer::fill_totals() {
  double squares = 0;
  const bool root = config_.sync.kind == SyncKind::root;
  for (size_t b = 0; sums_squares() && b < squares_.size(); ++b) {
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

void StageTrainer::decide() {
  double squares = 0;
  if (sums_squares()) {
    squares = totals_[total_squares].item<double>();
  } else {
    // Ahead of the gradients only the norm of the step before is known.
    for (const auto& one : squares_) squares += one.defined() ? one.item<double>() : 0;
  }
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
  world_.recorder().memory().set("activations", most_kept_bytes_);

  StepReport report;
  report.step = progression_.step;
  report.steps = config_.train.steps;
  report.loss = loose_ ? loose_->loss() : totals_[total_loss].item<double>();
  if (!config_.distill.from.empty() && !loose_) report.distillation = totals_[total_distillation].item<double>();
  report.grad_norm = grad_norm_;
  report.lr = lr_;
  report.step_s = clock_.now_s() - step_begun_s_;
  report.items = data_.train->items();
  const double batches = loose_ ? loose_->batches() - batches_before : 1;
  report.items_per_s =
      batches * static_cast<double>(config_.train.batch * data_.train->items_per_sample()) / report.step_s;
  report.skipped = progression_.skipped;
  report.reduce_wait_s = last_reduce_idle_s_ = executor_.idle().reduce_s + awaited_s_;
  if (loose_) {
    report.staleness = loose_->staleness();
    report.batches = loose_->batches();
  } else {
    tell_times(report);
  }
  tell_traffic(report);
  report.sent_bytes = world_.recorder().sent_bytes() - sent;
  report.memory = world_.recorder().memory().by_owner();
  return report;
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

// Parameters may be on their way until the layer is passed that needs them.
void StageTrainer::find_layers() {
  const auto& buckets = store_->buckets();
  for (auto& chunk : chunks_) {
    std::vector<std::vector<size_t>> needed;  // buckets, by layer
    for (const auto& layer : chunk.stage->model().layers) {
      needed.emplace_back();
      const auto parameters = layer->parameters();
      for (size_t b = 0; b < buckets.size(); ++b) {
        const auto holds = [&](const auto& stored) {
          return std::find(parameters.begin(), parameters.end(), stored.parameter) != parameters.end();
        };
        if (std::any_of(buckets[b].parameters.begin(), buckets[b].parameters.end(), holds)) needed.back().push_back(b);
      }
    }
    chunk.before_layer = [this, needed = std::move(needed)](size_t layer) {
      c10::NoGradGuard no_grad;
      for (const size_t b : needed[layer]) catch_up(b);
    };
  }
}

void StageTrainer::while_whole(const std::function<void()>& save) {
  catch_up();
  if (loose_) return loose_->with_agreed(true, save);
  if (config_.sync.kind == SyncKind::root) sync_->gather_state(*optimizer_);
  with_statistics(save);
  if (config_.sync.kind == SyncKind::root) sync_->release_state();
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
  if (codec_.feedback && report.step % config_.log.every == 0 && together())
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
      "from a checkpoint with --resume, without that machine",
      progression_.step, who);
}

}  // namespace trireme
