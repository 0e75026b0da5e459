// A pipeline's step in simulated time: one executor a rank, the same that trains, with passes that take given times and
// messages that arrive after a given delay. It finds out before the first step whether a schedule can end, how many
// microbatches each rank holds at most, and how much of the time ranks have nothing to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/spec/mesh.h"
#include "trireme/spec/schedule.h"

namespace trireme {

// Of one microbatch through all of a stage's chunks. Where backward passes are split, half of them is the weights'.
struct StageCost {
  double forward_s = 1, backward_s = 2;
  double message_s = 0;  // from this stage to its neighbours
};

struct PassSpan {
  int rank = 0;
  // With the rank's own number of the microbatch. Weights' gradients are several spans (weight_slices).
  StageAction action{TaskKind::forward, 0};
  double begin_s = 0, end_s = 0;
};

struct PipelineReport {
  double step_s = 0;
  std::vector<int> in_flight;  // most microbatches held, by rank
  std::vector<double> idle_s;  // by rank
  std::vector<PassSpan> spans;

  double bubble() const;      // share of all ranks' time in which they had nothing to do
  std::string brief() const;  // "bubble 27.3 %, microbatches in flight by rank 4 3 2 1"
};

using ScheduleMaker = std::function<std::unique_ptr<Schedule>(const StagePlace&)>;

// Of a mesh with as many replicas in each stage one of each is played, with so many microbatches; otherwise they are
// dealt over the replicas of each stage. Throws, naming stage and action, when the schedule cannot end or a rank would
// hold more than it said.
PipelineReport simulate_pipeline(const ScheduleMaker& make, const Mesh& mesh, int microbatches,
                                 const std::vector<StageCost>& costs);
// Of stages with one replica and chunk each.
PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs);

}  // namespace trireme
