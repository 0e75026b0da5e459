#include "trireme/spec/stage_plan.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/spec/schedule.h"
#include "trireme/spec/share.h"

namespace trireme {

namespace {

int64_t value_bytes(Precision precision) {
  return precision == Precision::fp64 ? 8 : precision == Precision::fp32 ? 4 : 2;
}

// Moments that the optimizer keeps of each parameter.
int64_t moments(const OptimizerConfig& optimizer) {
  if (optimizer.kind == OptimizerKind::adamw) return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

}  // namespace

std::vector<StagePlan> plan_stages(const RunConfig& config, const LayerTable& table, const Mesh& mesh) {
  const auto begins = stage_begins(table, config.parallel);
  const int64_t value = value_bytes(config.train.precision), master = std::max<int64_t>(4, value);
  // The largest share needs most.
  int64_t share = 0;
  for (const auto& one : deal(config.train.batch, mesh.replicas, config.parallel.shares))
    share = std::max(share, one.count);
  const int64_t microbatch = config.train.microbatch > 0 ? std::min(config.train.microbatch, share) : share;
  const auto microbatches = static_cast<int>((share + microbatch - 1) / microbatch);
  std::vector<StagePlan> stages;
  for (int s = 0; s < mesh.stages; ++s) {
    StagePlan plan;
    plan.stage = s;
    const auto begin = static_cast<size_t>(begins[static_cast<size_t>(s)]);
    const auto end =
        s + 1 < mesh.stages ? static_cast<size_t>(begins[static_cast<size_t>(s) + 1]) : table.layers.size();
    plan.first = table.layers[begin].name;
    plan.last = table.layers[end - 1].name;
    plan.layers = static_cast<int64_t>(end - begin);
    plan.microbatch = microbatch;
    int64_t activations = 0, frozen = 0;
    for (size_t i = begin; i < end; ++i) {
      const auto& layer = table.layers[i];
      plan.parameters += layer.parameters + (s > 0 ? layer.tied : 0);
      plan.flops += layer.forward_flops + layer.backward_flops;
      activations += layer.activations;
      frozen += layer.frozen;
    }
    plan.in_flight = make_schedule(config.parallel.schedule, {s, mesh.stages, microbatches},
                                   static_cast<int>(config.parallel.in_flight), config.parallel.deterministic)
                         ->in_flight();
    plan.parameter_bytes = plan.parameters * value;
    const int64_t trained = plan.parameters - frozen;
    plan.master_bytes = value < master ? trained * master : 0;
    plan.gradient_bytes = trained * master;
    plan.optimizer_bytes = trained * master * moments(config.optimizer);
    plan.activation_bytes = activations * value * microbatch * plan.in_flight;
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
    const auto layers = stage.first == stage.last ? stage.first : fmt::format("{} - {}", stage.first, stage.last);
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
        "a rank of stage {} would hold {} (values {}, gradients {}, optimizer {}, activations {} of {} microbatch(es) "
        "in flight{}), more than memory.limit_mb = {}: cut the model into more stages (parallel.pipe), or lower "
        "train.microbatch",
        stage.stage, human_bytes(total), bytes(stage.parameter_bytes + stage.master_bytes), bytes(stage.gradient_bytes),
        bytes(stage.optimizer_bytes), bytes(stage.activation_bytes), stage.in_flight, teacher, config.memory.limit_mb);
  }
}

}  // namespace trireme
