#include "trireme/spec/plan.h"

#include "trireme/spec/action_table.h"
#include "trireme/spec/plan_check.h"

namespace trireme {

std::unique_ptr<Schedule> Plan::schedule_of(int rank) const { return schedule_at(dealing.place(rank)); }

std::unique_ptr<Schedule> Plan::schedule_at(const StagePlace& place) const {
  // What is computed again would be kept by weights' gradients that are put off.
  return make_schedule(schedule, place, schedule_options, /*frugal=*/activations == ActivationKind::recompute);
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

size_t Plan::recomputed_layers(size_t layers) const {
  return activations == ActivationKind::recompute ? layers - 1 : 0;
}

Plan::Layers Plan::layers_of(int part, size_t layers) const {
  const auto next = static_cast<size_t>(part) + 1;
  return {static_cast<size_t>(begins[next - 1]), next < begins.size() ? static_cast<size_t>(begins[next]) : layers};
}

MadeFor made_for(const RunConfig& config, const LayerTable& table, const Facts& facts) {
  return {facts.ranks, std::ssize(table.layers), config.train.batch};
}

namespace {

UpdateRule update_rule(const RunConfig& config) {
  if (!row_of(config.parallel.schedule).drains) return UpdateRule::flow;
  if (is_loose(config.sync.kind)) return UpdateRule::loose;
  if (config.sync.kind == SyncKind::root) return UpdateRule::root;
  if (config.sync.order == SyncOrder::forward) return UpdateRule::ahead;
  // Where the first value that is not finite ends the run, no step is skipped.
  const bool depends = config.optimizer.clip > 0 || config.train.nonfinite_limit > 0;
  return depends ? UpdateRule::decided : UpdateRule::as_reduced;
}

}  // namespace

Plan make_plan(const RunConfig& config, const LayerTable& table, const Facts& facts) {
  auto parallel = config.parallel;
  auto& options = parallel.options;
  const auto& row = row_of(parallel.schedule);
  if (row.reads_file()) {
    options.table = std::make_shared<const ActionTable>(read_action_table(options.file));
  }
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
            config.sync,
            update_rule(config)};
  check_plan(table, plan, facts);
  return plan;
}

}  // namespace trireme
