#include "trireme/spec/parallel_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace trireme {

namespace {

std::vector<std::pair<const char*, ScheduleKind>> names_of_schedules() {
  std::vector<std::pair<const char*, ScheduleKind>> names;
  for (const auto& row : all_schedules()) names.emplace_back(row.name, row.kind);
  return names;
}

}  // namespace

void describe_parallel(Settings& settings, ParallelConfig& parallel) {
  settings.section("parallel", "How the work is split over ranks: stages of layers, and replicas of each stage.");
  settings.add("parallel.pipe", parallel.pipe, "Stages that the layers are cut into, each on ranks of its own.")
      .unit("stages")
      .at_least(1);
  settings.add("parallel.data", parallel.data, "Replicas of each stage; 0 = as many as the ranks allow.")
      .unit("replicas")
      .at_least(0);
  settings
      .add("parallel.shares", parallel.shares,
           "How the samples of a batch are dealt: a number for each replica, such as its speed; empty = equally.")
      .above(0);
  settings.add_choice("parallel.schedule", parallel.schedule,
                      names_of_schedules(),
                      "What a stage does next: see docs/pipelines.md.");
  settings
      .add("parallel.cuts", parallel.cuts,
           "First layer of each stage (or chunk) but the first, counted from 0; empty = about equal work for all.")
      .at_least(1);
  settings
      .add("parallel.in_flight", parallel.options.in_flight,
           "Most microbatches between their forward and backward pass (arrival, zero-bubble); 0 = as many as stages.")
      .unit("microbatches")
      .at_least(0);
  settings.add("parallel.deterministic", parallel.options.deterministic,
               "Whether microbatches keep their order (arrival only), so that two runs give the same bits.");
  settings
      .add(
          "parallel.replicas", parallel.replicas,
          "Replicas of each stage, where they differ; microbatches are dealt over them in turn. Empty = parallel.data.")
      .at_least(1);
  settings
      .add("parallel.chunks", parallel.options.chunks, "Parts of the model that each rank holds (interleaved only); 0 = two.")
      .at_least(0)
      .at_most(64);
  settings.add("parallel.schedule_file", parallel.options.file,
               "A table of actions, a row for each stage: 0F0,0F1,0B0,0B1 (with parallel.schedule=file); its path begins "
               "in the folder of the file that names it.");
  settings.add("parallel.vertical_sync", parallel.options.vertical_sync,
               "Whether a microbatch sees weights of the same age in all stages (pipedream only).");
  settings
      .add(
          "parallel.predict", parallel.options.predict,
          "How far ahead a microbatch sees the weights: 1 = as they are expected to be when it changes them, 2 = twice "
          "as far, 0 = as they are (pipedream, pipedream-2bw).")
      .at_least(0)
      .at_most(8)
      .once_a_switch();
}

void describe_microbatch(Settings& settings, TrainConfig& train) {
  settings.add("train.microbatch", train.microbatch, "Samples that a rank takes at once; 0 = its whole share.")
      .unit("samples")
      .at_least(0);
}

void describe_activations(Settings& settings, MemoryConfig& memory) {
  settings.add_choice("memory.activations", memory.activations,
                      {{"keep", ActivationKind::keep}, {"recompute", ActivationKind::recompute}},
                      "What a layer keeps of a microbatch until its backward pass: all that this needs, or its input "
                      "alone, to compute the rest again.");
}

void describe_memory(Settings& settings, MemoryConfig& memory) {
  settings.section("memory", "What a rank may hold.");
  describe_activations(settings, memory);
  settings
      .add("memory.limit_mb", memory.limit_mb,
           "A run whose ranks would need more than this is refused before the first step; 0 = no limit.")
      .unit("MB")
      .at_least(0);
}

void check_parallel(const RunConfig& config, const Settings& settings) {
  const auto require = std::bind_front(&Settings::require, &settings);
  const auto& parallel = config.parallel;
  const auto& options = parallel.options;
  const auto& row = row_of(parallel.schedule);
  const auto count = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  require(parallel.cuts.empty() || row.layout || count(parallel.cuts) == parallel.pipe - 1, "parallel.cuts",
          "must name one layer less than", "parallel.pipe");
  require(parallel.shares.empty() || parallel.data == 0 || count(parallel.shares) == parallel.data, "parallel.shares",
          "must be as many numbers as", "parallel.data");
  // Options of other schedules must be as if they were not there.
  require(!options.file.empty() || !row.reads_file(), "parallel.schedule_file", "must name a table of actions with",
          "parallel.schedule");
  const auto only_where_read = [&](bool given, const char* option, const char* rule) {
    require(!given || row.reads(option), fmt::format("parallel.{}", option), rule, "parallel.schedule");
  };
  only_where_read(options.in_flight != 0, "in_flight", "must be 0 with");
  only_where_read(options.chunks != 0, "chunks", "must be 0 with");
  only_where_read(!options.file.empty(), "schedule_file", "must be empty with");
  only_where_read(options.vertical_sync, "vertical_sync", "must be false with");
  only_where_read(options.predict != 0, "predict", "must be 0 with");
  if (!row.drains) {
    require(parallel.pipe > 1, "parallel.pipe", "must be at least 2 with", "parallel.schedule");
    require(config.sync.kind == SyncKind::allreduce, "sync.kind",
            "must be allreduce (every replica keeps versions of its own weights) with", "parallel.schedule");
    require(config.sync.order == SyncOrder::backward, "sync.order", "must be backward with", "parallel.schedule");
  }
  // Passes that wait for those of other replicas must be in the same order on all of them. Where stages differ in their
  // replicas no pass waits for others.
  const auto& replicas = parallel.replicas;
  const bool even = std::equal(replicas.begin() + (replicas.empty() ? 0 : 1), replicas.end(), replicas.begin());
  const bool alone = replicas.empty() ? parallel.data == 1 : even && replicas.front() == 1;
  const bool any_order = row.follows_arrivals || (!row.drains && even);
  require(!any_order || parallel.pipe == 1 || alone || !shares_statistics(config.model), "model.batch_norm",
          "must be local, or parallel.data 1, with", "parallel.schedule");
  if (replicas.empty()) return;
  require(count(replicas) == parallel.pipe, "parallel.replicas", "must be as many numbers as", "parallel.pipe");
  require(parallel.data == 0, "parallel.data", "must be 0 with", "parallel.replicas");
  require(parallel.shares.empty(), "parallel.shares", "must be empty with", "parallel.replicas");
  require(!row.reads_file() || even, "parallel.replicas", "must be equal numbers with", "parallel.schedule");
}

}  // namespace trireme
