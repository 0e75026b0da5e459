#include "trireme/train/forecast.h"

#include <algorithm>

#include "trireme/base/units.h"
#include "trireme/base/words.h"
#include "trireme/spec/codec_cost.h"
#include "trireme/spec/plan_file.h"
#include "trireme/spec/sync_settings.h"

namespace trireme {

using nlohmann::ordered_json;

std::string MemoryForecast::brief() const {
  const auto room = human_bytes(static_cast<double>(room_bytes));
  return fmt::format("{} of {}: a {} holds {} at most {}", counted(hosts, "host"), counted(ranks_on_each, "rank"),
                     cards ? "card" : "host", human_bytes(held_bytes),
                     fits() ? fmt::format("of its {}", room) : fmt::format("and has {}: this does not fit", room));
}

std::string RunForecast::full() const {
  auto text = table.full();
  text += fmt::format("\n{} parameters, {} FLOP a sample; {} a step over {}, {}\n",
                      human_count(static_cast<double>(table.parameters())), human_count(table.flops()),
                      counted(plan.made_for.batch, "sample"), counted(plan.made_for.ranks, "rank"),
                      counted(steps, "step"));
  if (const auto dealt = plan.dealing.describe(); !dealt.empty()) text += dealt + "\n";
  text += fmt::format("data: {}\n\n{}", data, describe(stages));
  for (const auto& finding : findings) text += finding + "\n";
  return text;
}

namespace {

ordered_json json_of(const StagePlan& stage) {
  return {{"stage", stage.stage},
          {"replicas", stage.replicas},
          {"layers", stage.layers},
          {"chunks", stage.chunks},
          {"parameters", stage.parameters},
          {"flops", stage.flops},
          {"microbatch", stage.microbatch},
          {"in_flight", stage.in_flight},
          {"bytes",
           {{"parameters", stage.parameter_bytes},
            {"masters", stage.master_bytes},
            {"gradients", stage.gradient_bytes},
            {"optimizer", stage.optimizer_bytes},
            {"activations", stage.activation_bytes},
            {"teacher", stage.teacher_bytes},
            {"total", stage.total_bytes()}}}};
}

}  // namespace

ordered_json RunForecast::json() const {
  ordered_json replicas = ordered_json::array(), all = ordered_json::array();
  for (int stage = 0; stage < plan.mesh.stages; ++stage) replicas.push_back(plan.mesh.replicas(stage));
  for (const auto& stage : stages) all.push_back(json_of(stage));
  const auto& made_for = plan.made_for;
  return {{"made_for", {{"ranks", made_for.ranks}, {"layers", made_for.layers}, {"batch", made_for.batch}}},
          {"mesh", {{"stages", plan.mesh.stages}, {"replicas", replicas}, {"chunks", plan.mesh.chunks}}},
          {"schedule", row_of(plan.schedule).name},
          {"activations", plan.activations == ActivationKind::keep ? "keep" : "recompute"},
          {"sync", row_of(plan.sync.kind).name},
          {"codec", name(plan.sync.codec.kind)},
          {"steps", steps},
          {"parameters", table.parameters()},
          {"flops", table.flops()},
          {"data", data},
          {"data_seen", data_seen},
          {"stages", all},
          {"memory",
           {{"hosts", memory.hosts},
            {"ranks_on_each", memory.ranks_on_each},
            {"of", memory.cards ? "card" : "host"},
            {"holds_bytes", memory.held_bytes},
            {"has_bytes", memory.room_bytes},
            {"fits", memory.fits()}}},
          {"plan", plan_yaml(plan)}};
}

}  // namespace trireme
