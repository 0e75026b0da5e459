#include "trireme/spec/stage_plan.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/spec/pass_bytes.h"

namespace trireme {

namespace {

// Bytes that a pass through a chunk leaves: until its backward pass, and from there until that of its weights where the
// schedule splits them.
struct Left {
  int64_t forward = 0, backward = 0;
};

// Of all passes that are in flight at once, at most.
int64_t most_held(const Schedule& schedule, const std::vector<Left>& by_chunk) {
  const auto* plan = schedule.plan();
  if (!plan) return schedule.in_flight() * by_chunk.front().forward;
  int64_t held = 0, most = 0;
  for (const auto& action : *plan) {
    const auto& left = by_chunk[static_cast<size_t>(action.chunk)];
    // Weights take their turn when there is time: any pass in flight may have had its backward pass, or not.
    const int64_t bytes = schedule.splits() ? std::max(left.forward, left.backward) : left.forward;
    if (action.kind == TaskKind::forward) held += bytes;
    if (action.kind == (schedule.splits() ? TaskKind::weights : TaskKind::backward)) held -= bytes;
    most = std::max(most, held);
  }
  return most;
}

// Elements of the first stage that others hold too.
int64_t shared_elements(const LayerTable& table, const Plan& plan) {
  int64_t most = 0;
  for (int part = 0; part < plan.mesh.parts(); ++part) {
    if (plan.mesh.stage_of_part(part) == plan.mesh.stage_of_part(0)) continue;
    const auto [begin, end] = plan.layers_of(part, table.layers.size());
    for (size_t i = begin; i < end; ++i) most = std::max(most, table.layers[i].tied);
  }
  return most;
}

}  // namespace

int64_t moments_of(const OptimizerConfig& optimizer) {
  if (optimizer.kind == OptimizerKind::adamw) return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

std::vector<StagePlan> plan_stages(const RunConfig& config, const LayerTable& table, const Plan& whole) {
  const auto& mesh = whole.mesh;
  const int64_t value = value_bytes(config.train.precision), master = master_bytes(config.train.precision);
  const int microbatches = whole.dealing.all_numbers().front();
  std::vector<StagePlan> stages;
  for (int s = 0; s < mesh.stages; ++s) {
    StagePlan plan;
    plan.stage = s;
    plan.replicas = mesh.replicas(s);
    plan.microbatch = whole.dealing.largest();
    const auto schedule = whole.schedule_at(place_of(mesh, s, 0, microbatches));
    plan.in_flight = schedule->in_flight();
    int64_t frozen = 0, tied = 0, again = 0;  // beside what is left, when a layer has been computed again
    std::vector<Left> activations;  // by chunk
    for (int chunk = 0; chunk < mesh.chunks; ++chunk) {
      const auto [begin, end] = whole.layers_of(mesh.part_of(s, chunk), table.layers.size());
      const auto &first = table.layers[begin].name, &last = table.layers[end - 1].name;
      plan.chunks.push_back(begin + 1 == end ? first : fmt::format("{} - {}", first, last));
      plan.layers += static_cast<int64_t>(end - begin);
      const size_t recomputed = whole.recomputed_layers(table.layers.size());
      const ReplayConditions conditions{
          .samples = plan.microbatch,
          .weights = schedule->splits() ? WeightGradients::later : WeightGradients::at_once};
      const auto pass = pass_bytes(table, begin, end, conditions, recomputed);
      activations.push_back({pass.input + pass.kept + pass.output, pass.waiting});
      again = std::max(again, pass.recomputed_most);
      for (size_t i = begin; i < end; ++i) {
        const auto& layer = table.layers[i];
        // A rank that has the table itself too holds it once.
        if (mesh.stage_of_part(0) != s) tied += layer.tied;
        plan.parameters += layer.parameters;
        plan.flops += layer.forward_flops + layer.backward_flops;
        frozen += layer.frozen;
      }
    }
    plan.parameters += tied;
    int64_t versions = 1;
    bool predicts = false;
    if (!whole.drains()) {
      const Flow flow(whole.schedule, whole.schedule_options.vertical_sync, mesh, s, 0, 1, microbatches);
      versions = flow.most_versions();
      predicts = whole.schedule_options.predict > 0 && flow.delay() > 0;
    }
    plan.parameter_bytes = plan.parameters * value * versions;
    const int64_t trained = plan.parameters - frozen;
    plan.master_bytes = value < master || predicts ? trained * master : 0;
    // What stages share is put aside while it is summed; of it the first stage has all.
    if (s == mesh.stage_of_part(0)) tied = shared_elements(table, whole);
    const int64_t aside = row_of(whole.schedule).changes_once ? tied : 0;
    plan.gradient_bytes = (trained + aside) * master;
    plan.optimizer_bytes = trained * master * moments_of(config.optimizer);
    plan.activation_bytes = most_held(*schedule, activations) + again;
    stages.push_back(plan);
  }
  return stages;
}

std::string describe(const std::vector<StagePlan>& stages) {
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
  std::string text =
      fmt::format("{:>5}  {:<24} {:>10} {:>7} {:>10} {:>10} {:>10} {:>9} {:>11} {:>10}\n", "stage", "layers",
                  "parameters", "FLOP", "values", "gradients", "optimizer", "in flight", "activations", "a rank");
  double flops = 0;
  for (const auto& stage : stages) flops += stage.flops;
  for (const auto& stage : stages) {
    const auto layers = fmt::format("{}", fmt::join(stage.chunks, ", "));
    text += fmt::format("{:>5}  {:<24} {:>10} {:>5.1f} % {:>10} {:>10} {:>10} {:>9} {:>11} {:>10}\n", stage.stage,
                        layers, human_count(static_cast<double>(stage.parameters)),
                        100 * stage.flops / std::max(flops, 1.0), bytes(stage.parameter_bytes + stage.master_bytes),
                        bytes(stage.gradient_bytes), bytes(stage.optimizer_bytes), stage.in_flight,
                        bytes(stage.activation_bytes), bytes(stage.total_bytes()));
  }
  return text;
}

void check_memory(const RunConfig& config, const std::vector<StagePlan>& stages) {
  const double limit = config.memory.limit_mb * 1e6;
  if (limit == 0) return;
  for (const auto& stage : stages) {
    const auto total = static_cast<double>(stage.total_bytes());
    if (total <= limit) continue;
    const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
    const auto teacher = stage.teacher_bytes > 0 ? fmt::format(", the teacher {}", bytes(stage.teacher_bytes)) : "";
    refuse(
        "a rank of stage {} would hold {} (values {}, gradients {}, optimizer {}, activations {} of {} "
        "in flight{}), more than memory.limit_mb = {}: cut the model into more stages (parallel.pipe), or lower "
        "train.microbatch",
        stage.stage, human_bytes(total), bytes(stage.parameter_bytes + stage.master_bytes), bytes(stage.gradient_bytes),
        bytes(stage.optimizer_bytes), bytes(stage.activation_bytes),
        counted(stage.in_flight, "microbatch", "microbatches"), teacher, config.memory.limit_mb);
  }
}

HeldBytes held_together(const RunConfig& config, const std::vector<StagePlan>& stages, const Mesh& mesh,
                        const std::vector<int>& ranks) {
  HeldBytes held;
  for (const int rank : ranks) {
    const auto& stage = stages[static_cast<size_t>(mesh.stage_of(rank))];
    // Under hogwild all ranks share one copy; under root only one replica keeps the state of a parameter.
    const double copies = config.sync.kind == SyncKind::hogwild ? static_cast<double>(ranks.size()) : 1;
    const double owners = config.sync.kind == SyncKind::root ? stage.replicas : copies;
    held.values += static_cast<double>(stage.parameter_bytes + stage.master_bytes) / copies;
    held.gradients += static_cast<double>(stage.gradient_bytes);
    held.optimizer += static_cast<double>(stage.optimizer_bytes) / owners;
    held.passes += static_cast<double>(stage.activation_bytes + stage.teacher_bytes);
  }
  return held;
}

void check_fits(const RunConfig& config, const std::vector<StagePlan>& stages, const Mesh& mesh, const MemoryPool& pool,
                int64_t sample_bytes) {
  const auto [values, gradients, optimizer, passes] =
      held_together(config, stages, mesh, pool.state ? pool.ranks : std::vector<int>());
  const double share = static_cast<double>(pool.ranks.size()) / mesh.ranks();
  const double batch = pool.samples ? static_cast<double>(sample_bytes * config.train.batch) * share : 0;
  const double least = values + gradients + optimizer + batch;
  if (least <= static_cast<double>(pool.bytes)) return;
  refuse(
      "the run needs at least {} of memory on {}, which has {}: parameters {}, gradients {}, optimizer state {}, one "
      "batch {}, for {} of its {} ranks; make the model smaller, cut it over more {} (parallel.pipe), or keep less "
      "(train.precision, optimizer.kind)",
      human_bytes(least), pool.name, human_bytes(static_cast<double>(pool.bytes)), human_bytes(values),
      human_bytes(gradients), human_bytes(optimizer), human_bytes(batch), pool.ranks.size(), mesh.ranks(),
      config.train.device == DeviceKind::cuda ? "cards" : "hosts");
}

}  // namespace trireme
