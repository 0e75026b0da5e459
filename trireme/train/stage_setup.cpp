// How a trainer comes to be: its parts of the model, its groups and ways to other ranks, its store, and its graphs.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>

#include "trireme/base/log.h"
#include "trireme/device/device.h"
#include "trireme/memory/counter.h"
#include "trireme/parallel/codec_choice.h"
#include "trireme/spec/models/models.h"
#include "trireme/train/stage_trainer.h"
#include "trireme/train/teacher.h"

namespace trireme {

LayerTable table_of(const RunConfig& config, const Model& model) {
  return model.table(value_bytes(config.train.precision));
}

LayerTable table_of(const RunConfig& config, int64_t vocab) {
  return model_table(config.model, vocab, value_bytes(config.train.precision));
}

StageTrainer::StageTrainer(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> whole)
    : StageTrainer(config, world, data, planned(config, world, data, std::move(whole))) {}

StageTrainer::StageTrainer(const RunConfig& config, World& world, const Split& data, Planned planned)
    : StageTrainer(config, world, data, std::move(planned.model), std::move(planned.plan)) {}

StageTrainer::Planned StageTrainer::planned(const RunConfig& config, World& world, const Split& data,
                                            std::unique_ptr<Model> whole) {
  if (!whole) whole = build_model(config.model, data.train->vocab());
  const Facts facts{world.size(), data.train->size(), world.ranks_are_threads()};
  auto plan = make_plan(config, table_of(config, *whole), facts);
  return {std::move(whole), std::move(plan)};
}

StageTrainer::StageTrainer(const RunConfig& config, World& world, const Split& data, std::unique_ptr<Model> model,
                           Plan plan)
    : config_(config),
      world_(world),
      data_(data),
      plan_(std::move(plan)),
      pieces_(plan_.dealing.pieces(world.rank())),
      samples_(plan_.dealing.samples(world.rank())),
      numbers_(plan_.dealing.numbers(world.rank())),
      device_(choose_device(config.train.device == DeviceKind::cuda, world.local_rank())),
      device_trace_(device_, world.recorder()),
      executor_(world.recorder(), clock_, &carriers_) {
  if (const auto dealt = plan_.dealing.describe(); !dealt.empty()) log::info("{}", dealt);
  if (config.train.microbatch > 0 && samples_ % config.train.microbatch != 0) {
    log::info("a share of {} samples does not divide into microbatches of {}: the last one is smaller", samples_,
              config.train.microbatch);
  }

  const auto table = table_of(config, *model);
  model_parameters_ = model_trained_ = table.parameters();
  for (const auto& layer : table.layers) model_trained_ -= layer.frozen;
  model_layers_ = static_cast<int64_t>(table.layers.size());
  for (size_t i = 0; i + 1 < table.layers.size(); ++i)
    widest_crossing_ = std::max(widest_crossing_, table.layers[i].output * table.element_bytes);
  take_parts(*model, table);
  model.reset();  // the rest is let go before it takes up memory
  {
    const OwnerScope scope(Owner::parameters);
    model_->buffers_to(master_type(config.train.precision), device_);
  }
  schedule_ = plan_.schedule_of(world.rank());
  // Choices that depend on what has come must be made on what is there. And processes take turns on a card: one that
  // waits there for another's work would be given its turns for nothing.
  settles_ = schedule_->follows_arrivals() || shares_card(device_, world.local_size());
  steps_ = std::make_unique<StepBuilder>(plan_, table, world.rank(), *schedule_);
  const auto& sync = plan_.sync;
  const double bucket_bytes = std::min(sync.bucket_mb * 1e6, static_cast<double>(table.parameters()) * 4);
  codec_ = chosen_codec(sync.codec, config.comm.links, world, static_cast<int64_t>(bucket_bytes));
  join_groups();
  const auto allocate = [&](int64_t bytes, int tie) {
    const Group group = tie < 0 ? groups_.stage : groups_.ties[static_cast<size_t>(tie)];
    return world.communicator().allocate(bytes, group, device_);
  };
  store_ = std::make_unique<ParameterStore>(model_->parameters(), config.train.precision, device_,
                                            sync.bucket_mb * 1e6, allocate);
  store_->draw(static_cast<uint64_t>(config.train.seed));
  optimizer_ = make_optimizer(config.optimizer);
  totals_ = at::zeros({totals_length()}, at::kDouble);
  if (codec_.kind != CodecKind::none && !is_loose(sync.kind)) {
    sums_ = std::make_unique<BucketSums>(codec_, static_cast<uint64_t>(config.train.seed), *store_,
                                         world.communicator(), world.recorder(), sum_groups_.of(store_->buckets()));
  }
  sync_ = std::make_unique<GradientSync>(sync, *store_, world.communicator(), groups_, executor_, totals_,
                                         sums_.get());
  for (size_t b = 0; b < store_->buckets().size(); ++b) {
    if (sync_->updates(b)) optimizer_->prepare(store_->buckets()[b]);
  }
  for (auto& chunk : chunks_) {
    // Nobody waits for what the first part gives back: its weights' gradients are put off only where the schedule does.
    // And what is put off keeps what was computed again.
    const bool again = plan_.activations == ActivationKind::recompute;
    if ((chunk.stage->first() || again) && !schedule_->splits()) continue;
    for (const auto& parameter : chunk.parameters) parameter->gradient.deferred = &weight_gradients_;
  }
  if (is_loose(sync.kind)) open_loose();
  if (plan_.update == UpdateRule::root || sync_->ahead()) find_layers();
  if (plan_.exchanges_statistics())
    replicas_ = [this](const at::Tensor& given) { return gather_replicas(given); };
  if (!config.distill.from.empty() && last_) {
    const OwnerScope scope(Owner::teacher);
    teacher_ = std::make_unique<Teacher>(config, data.train->vocab(), device_);
  }
  loss_sum_ = at::zeros({}, at::TensorOptions().device(device_).dtype(at::kDouble));
  distillation_sum_ = at::zeros_like(loss_sum_);
  squares_.resize(store_->buckets().size());
  behind_.buckets.resize(store_->buckets().size());
  recomputed_ = plan_.recomputed_layers(table.layers.size());
  if (plan_.drains()) {
    open_step();
  } else {
    open_flow();
  }
  build_evaluation();
}

// The parts of the model that this rank holds, and all their layers as one model.
void StageTrainer::take_parts(const Model& whole, const LayerTable& table) {
  ties_ = find_ties(plan_, table);
  note_sharing(whole, table, plan_, stage_number());
  model_ = std::make_unique<Model>();
  for (int c = 0; c < mesh_.chunks; ++c) {
    auto& chunk = chunks_.emplace_back();
    chunk.stage = std::make_unique<Stage>(whole, plan_.begins, mesh_.part_of(stage_number(), c));
    auto& part = chunk.stage->model();
    chunk.parameters = part.parameters();
    model_->layers.insert(model_->layers.end(), part.layers.begin(), part.layers.end());
    first_ |= chunk.stage->first();
    last_ |= chunk.stage->last();
  }
}

void StageTrainer::open_step() {
  for (size_t c = 0; c < chunks_.size(); ++c) make_flights(c, MessageKind::activation, pieces_.size());
  const auto step = steps_->step();
  if (!step.rounds.empty()) sends_ = step.rounds.front();
  step_graph_ = bind(step, [this](TaskId id, const StepTask& task) { return work_of(id, task); });
}

// Of microbatches that come with messages of this kind.
void StageTrainer::make_flights(size_t c, MessageKind kind, size_t count) {
  const auto& stage = *chunks_[c].stage;
  const size_t incoming = stage.incoming().size(), outgoing = stage.outgoing().size();
  auto& flights = kind == MessageKind::evaluation ? chunks_[c].evaluations : chunks_[c].flights;
  flights.resize(count);
  for (size_t m = 0; m < count; ++m) {
    auto& flight = flights[m];
    flight.arrived.resize(incoming);
    flight.arrival_boxes.resize(incoming);
    flight.arrivals.resize(incoming);
    flight.gradients.resize(outgoing);
    flight.return_boxes.resize(outgoing);
    flight.returns.resize(outgoing);
    for (size_t i = 0; i < incoming; ++i) open_box(kind, c, m, i);
    for (size_t i = 0; kind == MessageKind::activation && i < outgoing; ++i) open_box(MessageKind::gradient, c, m, i);
  }
}

// The replicas of a stage, the stages that share parameters, and the ways between neighbouring stages.
void StageTrainer::join_groups() {
  auto& communicator = world_.communicator();
  carriers_.communicator = &communicator;
  carriers_.world = &world_;
  const int stage = stage_number();
  const bool compresses = codec_.kind != CodecKind::none && !is_loose(plan_.sync.kind);
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
      for (const auto& crossing : chunk.stage->incoming())
        ranks.insert(steps_->message(MessageKind::activation, crossing, m).from);
      for (const auto& crossing : chunk.stage->outgoing())
        ranks.insert(steps_->message(MessageKind::activation, crossing, m).to);
    }
  }
  for (int rank = 0; !plan_.drains() && rank < world_.size(); ++rank) {
    if (rank == 0 || world_.rank() == 0) ranks.insert(rank);  // reports
  }
  for (int other = 0; is_loose(plan_.sync.kind) && other < mesh_.stages; ++other)
    ranks.insert(mesh_.rank_of(other, mesh_.replica_of(world_.rank())));
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

}  // namespace trireme
