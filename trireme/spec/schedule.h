// When a stage of a pipeline does what. A schedule is a small policy: of the tasks that are ready, which next, and how
// many microbatches may be in flight (their forward pass done here, their backward pass not). It holds no state of a
// step, so one object serves all steps.
//
//   gpipe     all forward passes, then all backward passes
//   1f1b      stage s of p: p-s-1 forward passes, then one forward, one backward in turn, then the backward passes
//   left:
//             at most p-s microbatches in flight
//   arrival   whatever has come, backward before forward (AxoNN); at most `in_flight` microbatches
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/spec/task.h"

namespace trireme {

enum class ScheduleKind { gpipe, one_forward_one_backward, arrival };

// A stage's place in its pipeline, and how many microbatches pass it in a step.
struct StagePlace {
  int stage = 0, stages = 1;
  int microbatches = 1;
};

// One thing that a stage does with a microbatch: a forward or a backward pass.
struct StageAction {
  TaskKind kind;
  int32_t microbatch;

  bool operator==(const StageAction&) const = default;
};

// How many passes the stage has begun in this step.
struct StageState {
  int32_t forwards = 0, backwards = 0;

  int32_t in_flight() const { return forwards - backwards; }
};

class Schedule {
 public:
  static constexpr size_t none = static_cast<size_t>(-1);

  virtual ~Schedule() = default;
  virtual const char* name() const = 0;
  // The place in `ready`, which is in the order of arrival, of the task to run now; `none`: rather wait for another.
  virtual size_t choose(std::span<const ReadyTask> ready, const StageState& state) const = 0;
  // The pass that a stage with nothing to do is waiting for: a forward, a backward, or neither, when all are done.
  virtual TaskKind awaited(const StageState& state) const = 0;
  // Most microbatches in flight at once.
  virtual int in_flight() const = 0;
  // Whether choices depend on when messages come: then they must be made on what is there, not on what is on its way.
  virtual bool follows_arrivals() const { return false; }
};

// What only a list of actions decides: the next one of the list, as soon as it is ready.
class ListSchedule final : public Schedule {
 public:
  ListSchedule(std::string name, std::vector<StageAction> actions);

  const char* name() const override { return name_.c_str(); }
  size_t choose(std::span<const ReadyTask> ready, const StageState& state) const override;
  TaskKind awaited(const StageState& state) const override;
  int in_flight() const override;
  const std::vector<StageAction>& actions() const { return actions_; }

 private:
  std::string name_;
  std::vector<StageAction> actions_;
};

// Whatever has come. `in_order`: microbatches pass in their order in both directions, so that sums do not depend on who
// came first; only whether a forward or a backward pass is next does.
class ArrivalSchedule final : public Schedule {
 public:
  ArrivalSchedule(StagePlace place, int in_flight, bool in_order);

  const char* name() const override { return "arrival"; }
  size_t choose(std::span<const ReadyTask> ready, const StageState& state) const override;
  TaskKind awaited(const StageState& state) const override;
  int in_flight() const override { return in_flight_; }
  bool follows_arrivals() const override { return true; }

 private:
  StagePlace place_;
  int in_flight_;
  bool in_order_;
};

std::vector<StageAction> gpipe_actions(StagePlace place);
std::vector<StageAction> one_forward_one_backward_actions(StagePlace place);

// `in_flight` bounds `arrival` alone: 0 means as many as there are stages.
std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, StagePlace place, int in_flight, bool deterministic);

}  // namespace trireme
