// A pipeline's step in simulated time: one executor a stage, the same that trains, with passes that take given times
// and messages that arrive after a given delay. It finds out before the first step whether a schedule can end, how many
// microbatches each stage holds at most, and how much of the time stages have nothing to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/spec/schedule.h"

namespace trireme {

struct StageCost {
  double forward_s = 1, backward_s = 2;  // of one microbatch
  double message_s = 0;                  // from this stage to its neighbours
};

struct PassSpan {
  int stage = 0;
  StageAction action{TaskKind::forward, 0};
  double begin_s = 0, end_s = 0;
};

struct PipelineReport {
  double step_s = 0;
  std::vector<int> in_flight;  // most microbatches held, by stage
  std::vector<double> idle_s;  // by stage
  std::vector<PassSpan> spans;

  double bubble() const;      // share of all stages' time in which they had nothing to do
  std::string brief() const;  // "bubble 27.3 %, microbatches in flight by stage 4 3 2 1"
};

using ScheduleMaker = std::function<std::unique_ptr<Schedule>(StagePlace)>;

// Throws, naming stage and action, when the schedule cannot end or a stage would hold more than it said.
PipelineReport simulate_pipeline(const ScheduleMaker& make, int microbatches, const std::vector<StageCost>& costs);

}  // namespace trireme
