#include "trireme/spec/plan.h"

#include "trireme/spec/action_table.h"
#include "trireme/spec/plan_check.h"

namespace trireme {

std::unique_ptr<Schedule> Plan::schedule_of(int rank) const { return schedule_at(dealing.place(rank)); }

std::unique_ptr<Schedule> Plan::schedule_at(const StagePlace& place) const {
  return make_schedule(schedule, place, schedule_options);
}

Flow Plan::flow_of(int rank) const {
  return {schedule,
          schedule_options.vertical_sync,
          mesh,
          mesh.stage_of(rank),
          mesh.replica_of(rank),
          std::ssize(dealing.pieces(rank)),
          dealing.numbers(rank)};
}

Plan::Layers Plan::layers_of(int part, size_t layers) const {
  const auto next = static_cast<size_t>(part) + 1;
  return {static_cast<size_t>(begins[next - 1]), next < begins.size() ? static_cast<size_t>(begins[next]) : layers};
}

MadeFor made_for(const RunConfig& config, const LayerTable& table, const Facts& facts) {
  return {facts.ranks, std::ssize(table.layers), config.train.batch};
}

Plan make_plan(const RunConfig& config, const LayerTable& table, const Facts& facts) {
  auto parallel = config.parallel;
  auto& options = parallel.options;
  const auto& row = row_of(parallel.schedule);
  if (row.reads_file()) {
    options.table = std::make_shared<const ActionTable>(read_action_table(options.file));
  }
  options.frugal = config.memory.activations == ActivationKind::recompute;
  const auto mesh = make_mesh(parallel, facts.ranks);
  if (row.reads("chunks")) options.chunks = mesh.chunks;
  check_dealing(config, mesh, facts.training_samples);
  Plan plan{made_for(config, table, facts),
            mesh,
            part_begins(table, parallel, mesh),
            deal_batch(config, mesh),
            parallel.schedule,
            options,
            config.memory.activations,
            config.sync};
  check_plan(table, plan, facts);
  return plan;
}

}  // namespace trireme
