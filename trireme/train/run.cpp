#include "trireme/train/run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host_memory.h"
#include "trireme/base/log.h"
#include "trireme/base/statistics.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/comm/core_sharing.h"
#include "trireme/comm/cores.h"
#include "trireme/codec/codec.h"
#include "trireme/comm/fault.h"
#include "trireme/data/image_set.h"
#include "trireme/data/order.h"
#include "trireme/device/device.h"
#include "trireme/engine/simulation.h"
#include "trireme/observe/metrics_file.h"
#include "trireme/observe/progress.h"
#include "trireme/observe/tensorboard.h"
#include "trireme/observe/watchdog.h"
#include "trireme/spec/stage_plan.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/disk_room.h"
#include "trireme/train/run_folder.h"
#include "trireme/train/run_log.h"
#include "trireme/train/run_trace.h"
#include "trireme/train/stop_signals.h"
#include "trireme/train/straggler_watch.h"
#include "trireme/train/stage_trainer.h"
#include "trireme/train/teacher.h"
#include "trireme/train/vocabulary.h"
#include "trireme/train/weights.h"
#include "trireme/spec/codec_cost.h"
#include "trireme/spec/links.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

// Ranks that were started with different configurations, or see different data, must not train together.
void check_same_everywhere(World& world, const std::string& resolved, const Dataset& data) {
  const auto mine = static_cast<int64_t>(checksum(bytes_of(resolved)));
  auto given = at::tensor({mine, data.size(), data.vocab()}, at::kLong);
  auto all = at::empty({world.size(), 3}, at::kLong);
  world.communicator().wait(world.communicator().all_gather(given, all.view({-1}), "compare configurations"));
  for (int rank = 1; rank < world.size(); ++rank) {
    if (!all[rank][0].equal(all[0][0])) refuse("rank {} was started with another configuration than rank 0", rank);
    if (!all[rank].equal(all[0])) {
      refuse("rank {} sees {} training samples, rank 0 sees {}: is data.path the same file on every host?", rank,
             all[rank][1].item<int64_t>(), all[0][1].item<int64_t>());
    }
  }
}

// The data, or an error that says which setting named it.
Split open_data(const RunConfig& config) {
  try {
    return open_dataset(data_options(config));
  } catch (Error& error) {
    if (config.data.kind != DataKind::synthetic) error.add_context("data.path");
    throw;
  }
}

}  // namespace

DataOptions data_options(const RunConfig& config) {
  DataOptions options;
  const bool vectors = config.model.kind == ModelKind::mlp, images = takes_images(config.model.kind);
  switch (config.data.kind) {
    case DataKind::custom: refuse("data.kind = custom is the data of a program that uses the library");
    case DataKind::text: options.kind = "text"; break;
    case DataKind::tokens: options.kind = "tokens"; break;
    case DataKind::images: options.kind = "images"; break;
    case DataKind::synthetic:
      options.kind = images ? "synthetic_images" : vectors ? "synthetic_vectors" : "synthetic_tokens";
      break;
  }
  if (vectors && config.data.kind != DataKind::synthetic)
    refuse("model.kind = mlp learns from vectors: set data.kind=synthetic");
  const bool another_path = config.data.path != DataConfig{}.path;
  options.path = config.data.kind == DataKind::images && !another_path ? default_images : config.data.path;
  options.mask = config.data.mask;
  options.separator = config.data.separator;
  options.dtype = config.data.dtype == TokenType::uint16   ? "uint16"
                  : config.data.dtype == TokenType::uint32 ? "uint32"
                                                           : "auto";
  options.context = config.model.context;
  options.vocab = config.model.vocab;
  if (config.data.kind == DataKind::synthetic && options.vocab == 0) options.vocab = 256;
  options.features = config.model.inputs;
  options.classes = config.model.classes;
  options.image = config.model.image;
  options.channels = config.model.channels;
  options.augments = config.data.augment == Augmentation::standard;
  options.samples = config.data.samples;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.validation = config.data.validation;
  return options;
}

int threads_per_rank(const RunConfig& config, int local_ranks) {
  if (config.train.threads > 0) return static_cast<int>(config.train.threads);
  return std::max(1, usable_cores() / std::max(1, local_ranks));
}

std::string RunResult::brief() const {
  if (step_s == 0) {
    return fmt::format("all {} steps were already done: raise train.steps to go on\nrun folder: {}\n", steps,
                       run_dir.string());
  }
  std::string text =
      stopped_by != 0 ? fmt::format("stopped after step {}", steps) : "trained " + counted(steps, "step");
  text += ": loss " + fixed(loss, 4);
  if (eval_loss) text += ", held-out loss " + fixed(*eval_loss, 4);
  if (eval_accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *eval_accuracy);
  text += fmt::format(", {} {}/s\nrun folder: {}\n", human_count(items_per_s), items, run_dir.string());
  if (!checkpoint.empty()) text += fmt::format("checkpoint: {}\n", checkpoint);
  return text;
}

nlohmann::ordered_json RunResult::json() const {
  nlohmann::ordered_json result{{"loss", std::isfinite(loss) ? nlohmann::ordered_json(loss) : nullptr},
                                {"steps", steps},
                                {"run_dir", run_dir.string()}};
  result[items + "_per_s"] = items_per_s;
  result["step_s"] = step_s;
  if (eval_loss) result["eval_loss"] = *eval_loss;
  if (eval_accuracy) result["eval_accuracy"] = *eval_accuracy;
  result["skipped"] = skipped;
  result["checkpoint"] = checkpoint;
  result["stopped_by"] = stopped_by;
  return result;
}

namespace {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The ranks of this host. All have joined.
std::vector<int> ranks_here(World& world) {
  if (world.ranks_are_threads()) return first_ranks(world.size());
  std::vector<int> ranks;
  for (int i = 0; i < world.local_size(); ++i) ranks.push_back(world.board()->slot(i).rank.load());
  return ranks;
}

// The memory of this host, or of each of its cards, with the ranks that share it, of those on this host.
std::vector<MemoryPool> pools_here(const RunConfig& config, const std::vector<int>& ranks) {
  const auto limit = host_memory_limit();
  MemoryPool host{limit.source, limit.bytes, ranks};
  if (config.train.device == DeviceKind::cpu) return {host};
  std::vector<MemoryPool> pools;
  for (const int64_t bytes : card_bytes())
    pools.push_back({fmt::format("card {}", pools.size()), bytes, {}, /*state=*/true, /*samples=*/false});
  if (pools.empty()) choose_device(true, 0);  // says why there is none
  for (size_t i = 0; i < ranks.size(); ++i) pools[i % pools.size()].ranks.push_back(ranks[i]);
  host.state = false;  // the samples of a step lie there until their microbatch is on its turn
  pools.push_back(host);
  return pools;
}

CodecKind codec_named(const std::string& text) {
  for (const auto kind : {CodecKind::none, CodecKind::bf16, CodecKind::int8, CodecKind::int4}) {
    if (text == name(kind)) return kind;
  }
  refuse("the checkpoint was made with the codec {}, which this program does not know", text);
}

// Everything about a run that can be known before its first step.
struct Planned {
  Plan plan;
  std::vector<StagePlan> stages;
};

// Refuses what surely cannot run where it would: on this host, by these of its ranks.
void check_fits_here(const RunConfig& config, const Dataset& data, const Planned& planned,
                     const std::vector<int>& ranks) {
  const auto pools = pools_here(config, ranks);
  for (const auto& pool : pools) check_fits(config, planned.stages, planned.plan.mesh, pool, 0);
  const int64_t sample = 0;
  const auto one = data.get({&sample, 1});  // which is smaller than the parameters that read it
  const auto bytes = static_cast<int64_t>(one.inputs.nbytes() + one.targets.nbytes());
  for (const auto& pool : pools) check_fits(config, planned.stages, planned.plan.mesh, pool, bytes);
}

// Refuses what this build, or this plan, cannot do. `answers`: how many the data has.
Planned planned(const RunConfig& config, const RunOptions& options, const Facts& facts, int64_t answers,
                const LayerTable& table) {
  if (config.log.trace_steps > 0) check_trace_built();
  const auto codec = config.sync.codec.kind;
  if (codec != CodecKind::none && codec != CodecKind::automatic) make_codec(config.sync.codec);
  if (options.plan) check_made_for(*options.plan, made_for(config, table, facts));
  auto plan = make_plan(config, table, facts);
  auto stages = plan_stages(config, table, plan);
  if (!config.distill.from.empty())
    stages.back().teacher_bytes = find_teacher(config, answers).parameter_bytes(config.train.precision);
  check_memory(config, stages);
  simulate(plan, table, std::vector<StageCost>(static_cast<size_t>(plan.mesh.stages)));
  return {std::move(plan), std::move(stages)};
}

RunFolder find_run_folder(const RunConfig& config, const RunOptions& options, RunFolder::Access access) {
  return options.resume ? RunFolder::resume(config, options.name, options.resume_from, access)
                        : RunFolder::fresh(config, options.name, access);
}

constexpr double forever = 1e9;  // seconds

// What ends every rank alike is said by the first; the others give it the time.
void give_first_rank_time(World& world) {
  if (world.ranks_are_threads()) return;
  for (int tries = 0; tries < 100 && !world.board()->faulted(); ++tries) usleep(10'000);
}

// What a run of this rank holds for as long as it may write: first the folder, then what writes there. Whoever ends the
// process, the watchdog or the run itself, holds `ending` from then on.
struct Holdings {
  RunFolder folder;
  std::mutex ending;
  std::unique_ptr<CheckpointWriter> writer;
};

// One run of this rank, from its data to its last checkpoint.
class Run {
 public:
  Run(const RunConfig& config, World& world, const RunOptions& options, Holdings& holdings)
      : config_(config),
        world_(world),
        options_(options),
        ending_(holdings.ending),
        writer_(holdings.writer),
        resolved_(resolved_yaml(config)),
        folder_(holdings.folder) {}

  RunResult operator()(std::optional<Subject> subject) {
    data_ = subject ? std::move(subject->data) : open_data(config_);
    check_same_everywhere(world_, resolved_, *data_.train);
    auto model = subject ? std::move(subject->model) : build_model(config_.model, data_.train->vocab());
    const auto table = table_of(config_, *model);
    const Facts facts{world_.size(), data_.train->size(), world_.ranks_are_threads()};
    auto [plan, stages] = planned(config_, options_, facts, data_.train->vocab(), table);
    check_fits_here(config_, *data_.train, {plan, stages}, ranks_here(world_));
    const auto checkpoint = find_folder(table);
    const auto saved = checkpoint.empty() ? std::nullopt : std::optional(open_checkpoint(checkpoint));
    keep_codec(saved, plan.sync.codec.kind);
    StageTrainer trainer(config_, world_, data_, std::move(model), plan);
    if (!config_.model.from.empty() && (checkpoint.empty() || config_.model.lora_rank > 0)) {
      load_weights(open_source_model(config_.model.from), trainer.model().parameters(), trainer.store(),
                   /*whole_model=*/trainer.mesh().stages == 1);
    }
    if (saved) {
      const auto& info = *saved;
      load_checkpoint(info, saved_parameters(trainer.model()), trainer.store(), /*with_optimizer=*/true,
                      /*whole_model=*/trainer.mesh().stages == 1, trainer.model().buffers());
      trainer.progression() = info.progression;
      if (trainer.never_drains()) {
        if (!trainer.go_on(read_own_state(info, world_.rank(), world_.size())) && world_.rank() == 0)
          log::info("the checkpoint has nothing in flight for this layout: the pipeline fills anew");
      }
      const auto own = trainer.never_drains() ? OwnState{} : trainer.own_state();
      if (!load_own_state(info, world_.rank(), world_.size(), own) && !own.empty() && world_.rank() == 0)
        log::info("the checkpoint has no states of {} under this sync.kind: all begin with what they agreed on",
                  counted(world_.size(), "rank"));
    }
    folder_.path = world_.from_first(folder_.path.string(), "share the run's folder");
    open_run_log(world_, folder_.path);
    if (world_.rank() == 0) open_folder(trainer, stages);
    open_writer(trainer);
    result_.run_dir = folder_.path;
    result_.items = data_.train->items();
    const int64_t begun_at = trainer.progression().step;
    do_steps(trainer);
    result_.steps = trainer.progression().step;
    result_.skipped = trainer.progression().skipped;
    finish(checkpoint, begun_at);
    if (world_.rank() == 0) log::note(result_.brief());
    return result_;
  }

 private:
  // Rank 0 finds the run's folder, which is its alone from here on, and the checkpoint to go on from, if any; the
  // others are told.
  std::string find_folder(const LayerTable& table) {
    std::optional<Error> problem;
    if (world_.rank() == 0) {
      try {
        folder_ = find_run_folder(config_, options_, RunFolder::Access::take);
        const auto room =
            disk_room(config_, table, folder_.path, folder_.checkpoint ? folder_.checkpoint->progression.step : 0);
        if (!room.fits_one()) refuse("{}", room.shortage());
        if (!room.fits()) log::warn("{}", room.shortage());
      } catch (const Error& error) {
        problem = error;
      }
    }
    const auto said = world_.from_first(problem ? problem->what() : "", "share the run's folder");
    if (problem) throw *problem;
    if (!said.empty()) refuse("{}", said);
    return world_.from_first(folder_.checkpoint ? folder_.checkpoint->folder.string() : "", "share the checkpoint");
  }

  // A codec that was chosen by what the machine could do then is a part of the run: another one now would give other
  // numbers.
  void keep_codec(const std::optional<CheckpointInfo>& saved, CodecKind& kind) const {
    if (kind != CodecKind::automatic || !saved || saved->codec.empty()) return;
    kind = codec_named(saved->codec);
    if (world_.rank() == 0) log::info("sync.codec = auto: {}, as the run had chosen", saved->codec);
  }

  // Of each stage one replica saves the model; every rank saves what it has of its own.
  void open_writer(StageTrainer& trainer) {
    const auto& mesh = trainer.mesh();
    const int stage = mesh.stage_of(world_.rank());
    const bool model = mesh.replica_of(world_.rank()) == 0, own = !trainer.own_state().empty();
    if (!model && !own) return;
    if (world_.rank() != 0) folder_.lock = FolderLock::join(folder_.path);
    CheckpointPart part{stage, mesh.stages, own ? world_.rank() : stage, {}, model};
    for (int writer = 0; writer < (own ? world_.size() : mesh.stages); ++writer)
      part.writer_ranks.push_back(own ? writer : mesh.rank_of(writer, 0));
    if (chooses_codec_) part.codec = name(trainer.codec().kind);
    part.stop_asked = [board = world_.board()] { return board->stop_requested() != 0; };
    const std::lock_guard not_while_ending(ending_);
    writer_ = std::make_unique<CheckpointWriter>(folder_.path, config_.checkpoint, resolved_, world_.recorder(), part);
  }

  void open_folder(StageTrainer& trainer, const std::vector<StagePlan>& stages) {
    auto& recorder = world_.recorder();
    const int64_t begun_at = trainer.progression().step, known = options_.resume ? begun_at : -1;
    set_aside_checkpoints_after(folder_.path, begun_at);
    folder_.lock->keep();
    // A run that is done already stays as it was.
    if (begun_at < config_.train.steps) folder_.prepare(resolved_, plan_with_comments(stages, world_, trainer));
    recorder.add_sink(std::make_unique<MetricsFile>(folder_.path / "metrics.jsonl", known));
    if (config_.log.tensorboard) recorder.add_sink(make_tensorboard(folder_.path, known));
    recorder.add_sink(std::make_unique<Progress>(config_.log.every, options_.quiet));
    log::info("{}", trainer.brief());
    log::info("data: {}", data_.train->describe());
    const auto& distill = config_.distill;
    if (!distill.from.empty())
      log::info("teacher: {}, weight {}, temperature {}", distill.from, distill.weight, distill.temperature);
    log::info("run folder: {}", folder_.path.string());
    if (stages.size() > 1 && !options_.quiet) {
      const auto table = describe(stages);
      log::info("{}", table.substr(0, table.size() - 1));  // without its last newline
    }
    if (options_.resume) log::info("resuming after step {}", begun_at);
    nlohmann::json begun{{"step", begun_at}, {"ranks", world_.size()}, {"threads", at::get_num_threads()}};
    if (config_.sync.codec.kind != CodecKind::none) begun["codec"] = name(trainer.codec().kind);
    recorder.event(options_.resume ? "resumed" : "started", begun);
  }

  void do_steps(StageTrainer& trainer) {
    std::vector<double> seconds;
    RunTrace trace(config_.log, world_, trainer.mesh(), folder_.path);
    StragglerWatch stragglers(trainer.plan(), world_);
    CoreSharing cores;
    int64_t before_ns = monotonic_ns();
    reported_ = together_at_ = trainer.progression().step;
    while (trainer.progression().step < config_.train.steps || !trainer.together()) {
      trace.before(trainer.progression().step + 1);
      auto report = trainer.step(world_.board()->stop_requested() != 0);
      const bool together = trainer.together(), stopping = together && trainer.stop_agreed();
      const bool last = together && (stopping || report.step == config_.train.steps);
      if (together && !stopping && (last || due(config_.train.eval_every, report.step))) evaluate(trainer, report);
      result_.loss = report.loss;
      // Ranks that go their own ways may be in one step of the job for a while. What is due is told when all are there.
      const int64_t done = report.step - reported_;
      if (together || (done > 0 && !is_due(report.step))) {
        world_.recorder().report(report);
        if (options_.after_step) options_.after_step(report);
        reported_ = report.step;
      }
      trainer.check_finite(report);
      stragglers.after(report);
      cores.after_step();
      trace.after(trainer.progression().step, last);
      if (together) save_if_due(trainer, report.step, last);
      if (reported_ == report.step && done > 0) {
        const int64_t now_ns = monotonic_ns();
        seconds.push_back(static_cast<double>(now_ns - before_ns) * 1e-9 / static_cast<double>(done));
        before_ns = now_ns;
      }
      if (stopping && report.step < config_.train.steps) {
        result_.stopped_by = world_.board()->stop_requested();
        if (result_.stopped_by == 0) result_.stopped_by = SIGTERM;  // another host's ranks were asked
        break;
      }
    }
    // The first steps pay for memory and caches: leave them out where there are enough others.
    if (seconds.size() > 4) seconds.erase(seconds.begin(), seconds.begin() + 2);
    result_.step_s = median(seconds);
    if (result_.step_s > 0)
      result_.items_per_s = static_cast<double>(config_.train.batch * data_.train->items_per_sample()) / result_.step_s;
  }

  // Whether a multiple of `every` has been passed since all ranks stood together.
  bool due(int64_t every, int64_t step) const { return every > 0 && step / every > together_at_ / every; }
  bool is_due(int64_t step) const {
    return step >= config_.train.steps || due(config_.train.eval_every, step) || due(config_.checkpoint.every, step);
  }

  void evaluate(StageTrainer& trainer, StepReport& report) {
    trainer.evaluate(report);
    if (!report.eval_loss) return;
    result_.eval_loss = report.eval_loss;
    result_.eval_accuracy = report.eval_accuracy;
  }

  void save_if_due(StageTrainer& trainer, int64_t step, bool last) {
    if (due(config_.watchdog.replicas, step)) trainer.check_replicas();  // before anything wrong is saved
    if (last || due(config_.checkpoint.every, step)) {
      world_.recorder().compute("save");
      if (writer_) writer_->keep_own(trainer.own_state());
      trainer.while_whole([&] {
        if (!writer_) return;
        const auto& model = trainer.model();
        writer_->save(saved_parameters(model), trainer.store(), trainer.progression(), model.buffers());
      });
    }
    together_at_ = step;
  }

  void finish(const std::string& resumed_from, int64_t begun_at) {
    world_.recorder().compute("finish");
    std::string lost;
    if (writer_) {
      writer_->finish(forever);
      result_.checkpoint = writer_->last().value_or(resumed_from).string();
      if (const auto failure = writer_->failure()) lost = describe_loss(*failure, begun_at);
    }
    world_.recorder().finish();
    lost = world_.from_first(lost, "share how the run ends");
    // Everybody leaves together: rank 0 may still have been writing.
    world_.communicator().wait(world_.communicator().barrier("finish"));
    if (lost.empty()) return;
    if (world_.rank() != 0) give_first_rank_time(world_);
    fail("{}", lost);
  }

  // The last state could not be saved: which steps are lost with it, and what there is to go on from.
  std::string describe_loss(const std::string& failure, int64_t begun_at) const {
    const auto newest = fs::path(result_.checkpoint);
    const int64_t saved = newest.empty() ? begun_at : step_of_checkpoint(newest);
    const auto steps = saved + 1 == result_.steps ? fmt::format("step {} is", result_.steps)
                                                  : fmt::format("steps {} to {} are", saved + 1, result_.steps);
    const auto rest = newest.empty()
                          ? std::string("there is no whole checkpoint")
                          : fmt::format("the newest whole checkpoint is {}: --resume goes on from it", newest.string());
    return fmt::format("the last checkpoint, of step {}, was not saved: {}. {} lost; {}", result_.steps, failure, steps,
                       rest);
  }

  RunConfig config_;
  World& world_;
  const RunOptions& options_;
  const bool chooses_codec_ = config_.sync.codec.kind == CodecKind::automatic;
  std::mutex& ending_;
  std::unique_ptr<CheckpointWriter>& writer_;
  const std::string resolved_;
  Split data_;
  RunFolder& folder_;  // the others' knows the path alone
  RunResult result_;
  int64_t reported_ = 0, together_at_ = 0;  // the last step that was told, and in which all ranks stood
};

}  // namespace

RunResult train(const RunConfig& config, World& world, const RunOptions& options, std::optional<Subject> subject) {
  at::set_num_threads(config.train.threads > 0 ? static_cast<int>(config.train.threads) : world.threads());
  std::optional<StopSignals> stop_signals;
  if (!world.ranks_are_threads() || world.rank() == 0) stop_signals.emplace(world.board());
  Holdings holdings;
  // Ranks that are threads live and die together: there is nobody to watch.
  std::optional<Watchdog> watchdog;
  if (!world.ranks_are_threads()) {
    watchdog.emplace(
        world.board(), world.local_rank(), world.rank(),
        WatchdogOptions{
            .heartbeat_s = config.watchdog.heartbeat,
            .stop_s = config.watchdog.stop,
            .before_exit =
                [&] {
                  (void)std::unique_lock(holdings.ending).release();  // for good
                  if (holdings.writer) holdings.writer->finish(5);  // a save under way is worth a moment
                  end_run_log(world, world.board()->fault_exit_status());
                },
            .advice = subject ? "; continue it from its newest checkpoint" : "; continue it with --resume",
            // A host's own ranks know better what is wrong there: they have the first word.
            .look_outside =
                [&](bool stepping) { return world.silent_hosts(stepping ? config.watchdog.heartbeat + 2 : 0); }});
  }
  try {
    auto result = Run(config, world, options, holdings)(std::move(subject));
    if (watchdog) watchdog->stand_down();
    return result;
  } catch (...) {
    const auto error = fault_of(std::current_exception(), world.board()->slot(world.local_rank()));
    // Peers read this on the board and end with the same status; the first to write it speaks for all.
    if (world.size() > 1 && !world.ranks_are_threads()) {
      if (watchdog) watchdog->stand_down();
      // What the user asked for is wrong on every rank alike, as a rule.
      if (error.kind() == Error::Kind::refused && world.rank() != 0) give_first_rank_time(world);
      world.board()->slot(world.local_rank()).state.store(RankState::failed);
      world.announce(std::make_exception_ptr(error));
      (void)std::unique_lock(holdings.ending).release();  // the watchdog may be faster, and ends the process
      holdings.writer.reset();
      holdings.folder.lock.reset();
      end_run_log(world, error.exit_status());
      _exit(error.exit_status());  // peers may be waiting in a collective that nobody will end
    }
    throw error;
  }
}

namespace {

// Of ranks that are still to be started, where the data is here.
Planned planned(const RunConfig& config, const RunOptions& options, const Dataset& data, const LayerTable& table,
                int ranks) {
  return planned(config, options, Facts{ranks, data.size(), options.threads}, data.vocab(), table);
}

// Of the memory that ranks share here, the fullest.
MemoryForecast memory_here(const RunConfig& config, const Planned& planned, int ranks) {
  MemoryForecast fullest{.ranks_on_each = ranks, .cards = config.train.device == DeviceKind::cuda};
  for (const auto& pool : pools_here(config, first_ranks(ranks))) {
    if (!pool.state) continue;
    const double held = held_together(config, planned.stages, planned.plan.mesh, pool.ranks).total();
    if (held < fullest.held_bytes) continue;
    fullest.held_bytes = held;
    fullest.room_bytes = pool.bytes;
  }
  return fullest;
}

MemoryForecast memory_elsewhere(const RunConfig& config, const Planned& planned, int ranks, const OtherHosts& hosts) {
  const int on_each = (ranks + hosts.count - 1) / hosts.count;
  // On cards each rank has one of its own; on processors the ranks of a host share its memory.
  const bool cards = config.train.device == DeviceKind::cuda;
  const int together = cards ? 1 : on_each;
  MemoryForecast fullest{.hosts = (ranks + on_each - 1) / on_each,
                         .ranks_on_each = on_each,
                         .cards = cards,
                         .room_bytes = hosts.memory_bytes};
  for (int first = 0; first < ranks; first += together) {
    std::vector<int> sharers(static_cast<size_t>(std::min(together, ranks - first)));
    std::iota(sharers.begin(), sharers.end(), first);
    const auto held = held_together(config, planned.stages, planned.plan.mesh, sharers);
    fullest.held_bytes = std::max(fullest.held_bytes, held.total());
  }
  return fullest;
}

}  // namespace

void check_run(const RunConfig& config, int ranks, const RunOptions& options) {
  if (!config.comm.links.empty()) read_links(config.comm.links);
  const auto data = open_data(config);
  const auto table = table_of(config, data.train->vocab());
  check_fits_here(config, *data.train, planned(config, options, *data.train, table, ranks), first_ranks(ranks));
}

int64_t vocabulary_of(const RunConfig& config) {
  if (!reads_tokens(config.model.kind) || config.model.vocab > 0) return config.model.vocab;
  return open_data(config).train->vocab();
}

RunForecast forecast_run(const RunConfig& config, int ranks, const RunOptions& options) {
  const auto data = open_data(config);
  choose_device(config.train.device == DeviceKind::cuda, 0);
  auto table = table_of(config, data.train->vocab());
  auto made = planned(config, options, *data.train, table, ranks);
  check_fits_here(config, *data.train, made, first_ranks(ranks));
  const auto folder = find_run_folder(config, options, RunFolder::Access::look);
  const auto room = disk_room(config, table, folder.path, folder.checkpoint ? folder.checkpoint->step : 0);
  if (!room.fits()) refuse("{}", room.shortage());
  std::vector<int64_t> samples;
  SampleOrder(data.train->size(), config.train.batch, static_cast<uint64_t>(config.train.seed))
      .fill(0, 0, config.train.batch, samples);
  data.train->get(samples);
  const auto memory = memory_here(config, made, ranks);
  return {.table = std::move(table),
          .steps = config.train.steps,
          .plan = std::move(made.plan),
          .stages = std::move(made.stages),
          .data = data.train->describe(),
          .memory = memory,
          .findings = {room.describe(), "the first batch reads well"}};
}

RunForecast forecast_run(const RunConfig& config, int ranks, const RunOptions& options, const OtherHosts& hosts) {
  Facts facts{.ranks = ranks, .one_process = options.threads};
  const bool tokens = reads_tokens(config.model.kind);
  int64_t answers = tokens ? config.model.vocab : config.model.classes;
  std::string seen, unseen;
  try {
    const auto data = open_data(config);
    facts.training_samples = data.train->size();
    answers = data.train->vocab();
    seen = data.train->describe();
  } catch (const Error& error) {
    if (tokens && config.model.vocab == 0)
      refuse("{}; to plan without the data, say how many distinct tokens it has: model.vocab=N", error.what());
    unseen = fmt::format("not seen here ({})", error.what());
  }
  auto table = table_of(config, answers);
  auto made = planned(config, options, facts, answers, table);
  const auto memory = memory_elsewhere(config, made, ranks, hosts);
  return {.table = std::move(table),
          .steps = config.train.steps,
          .plan = std::move(made.plan),
          .stages = std::move(made.stages),
          .data_seen = unseen.empty(),
          .data = unseen.empty() ? seen : unseen,
          .memory = memory,
          .findings = {memory.brief()}};
}

}  // namespace trireme
