// A pipeline in simulated time: one executor a rank, the same that trains, on the same graphs of steps (step_graph), with
// passes that take given times and messages that arrive after a given delay. It finds out before the first step whether
// a schedule can end, how many microbatches each rank holds at most, and how much of the time ranks have nothing to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/engine/executor.h"
#include "trireme/spec/plan.h"

namespace trireme {

// Of one microbatch through all of a stage's chunks. Where backward passes are split, half of them is the weights'. What
// is no pass takes no time.
struct StageCost {
  double forward_s = 1, backward_s = 2;
  double message_s = 0;  // from this stage to its neighbours
};

// A task that a rank has done, or the moment at which a wire task ended.
struct TaskSpan {
  int rank = 0;
  int step = 0;  // from 0
  Lane lane = Lane::compute;
  StageAction action{TaskKind::forward, 0};  // with the rank's own number of the microbatch
  double begin_s = 0, end_s = 0;

  bool is_pass() const;  // weights' gradients are several (weight_slices)
};

struct PipelineReport {
  double step_s = 0;
  std::vector<int> in_flight;  // most microbatches held, by rank, of those that were played
  std::vector<double> idle_s;  // the same
  std::vector<TaskSpan> spans;

  double bubble() const;      // share of all ranks' time in which they had nothing to do
  std::string brief() const;  // "bubble 27.3 %, microbatches in flight by rank 4 3 2 1"
};

// A step of a plan; of a pipeline that never drains so many that each of its microbatches comes back. `costs` are by
// stage. Where stages have equally many replicas, each replica is a pipeline of its own. Unless all ranks are asked for,
// one of those with as many microbatches is played, and what it sums with the others is there when it comes to it.
// Throws, naming stage and action, when the schedule cannot end or a rank would hold more than it said.
PipelineReport simulate(const Plan& plan, const LayerTable& table, const std::vector<StageCost>& costs,
                        bool all_ranks = false);

// The same of a schedule alone: one layer a part, and nothing to change. One replica passes so many microbatches, or
// they are dealt over the replicas of each stage where these differ.
using ScheduleMaker = std::function<std::unique_ptr<Schedule>(const StagePlace&)>;
PipelineReport simulate_pipeline(const ScheduleMaker& make, const Mesh& mesh, int microbatches,
                                 const std::vector<StageCost>& costs);
// Of stages with one replica and chunk each.
PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs);

}  // namespace trireme
