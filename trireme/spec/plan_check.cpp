#include "trireme/spec/plan_check.h"

#include "trireme/base/error.h"
#include "trireme/base/words.h"
#include "trireme/spec/parts.h"
#include "trireme/spec/sync_settings.h"

namespace trireme {

namespace {

void check_flow(const LayerTable& table, const Plan& plan) {
  const auto& row = row_of(plan.schedule);
  if (!row.changes_once && !find_ties(plan, table).empty()) {
    refuse(
        "parallel.schedule = {}: stages would change the parameters that they share (a tied table) at different times; "
        "give each its own (model.untied=true, model.tied=false), or choose {}, in which all stages see weights of the "
        "same age",
        row.name, row_of(ScheduleKind::pipedream_2bw).name);
  }
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const int stage = plan.mesh.stage_of(rank);
    const auto flow = plan.flow_of(rank);
    if (row.changes_once && flow.per_step() < flow.ahead()) {
      refuse(
          "parallel.schedule = {} needs at least {} of a rank of stage {} in a step, as many as it has in flight, and "
          "there {}: lower train.microbatch, or raise train.batch",
          row.name, counted(flow.ahead(), "microbatch", "microbatches"), stage,
          flow.per_step() == 1 ? "is 1" : fmt::format("are {}", flow.per_step()));
    }
    const auto first = plan.flow_of(plan.mesh.rank_of(stage, 0));
    if (!row.changes_once && flow.per_step() != first.per_step()) {
      refuse(
          "parallel.schedule = {}: the microbatches of a step must divide over the {} replicas of stage {}: change "
          "train.batch or train.microbatch",
          row.name, plan.mesh.replicas(stage), stage);
    }
  }
}

void check_replicas(const LayerTable& table, const Plan& plan, const Facts& facts) {
  const auto& row = row_of(plan.sync.kind);
  if (row.one_process && facts.ranks > 1 && !facts.one_process) {
    refuse("sync.kind = {} shares memory between threads: start the run with trireme train --threads", row.name);
  }
  if (row.reads("servers") && plan.sync.servers > facts.ranks) {
    refuse("sync.servers = {}, but there {} {}: name at most as many, or 0 for all of them", plan.sync.servers,
           plural(facts.ranks, "is", "are"), counted(facts.ranks, "rank"));
  }
  if (row.loose && !find_ties(plan, table).empty()) {
    refuse(
        "sync.kind = {} in a pipeline: stages would change the parameters that they share (a tied table) by different "
        "gradients; give each its own (model.untied=true, model.tied=false), or choose sync.kind=allreduce",
        row.name);
  }
}

}  // namespace

void check_plan(const LayerTable& table, const Plan& plan, const Facts& facts) {
  check_replicas(table, plan, facts);
  if (!plan.drains()) check_flow(table, plan);
}

}  // namespace trireme
