// When a rank of a pipeline does what. A schedule is a small policy: of the tasks that are ready, which next, and how
// many microbatches may be in flight (their forward pass done here, what their backward pass needs still held). It
// holds no state of a step, so one object serves all steps.
//
// Most schedules are lists of actions (action_list.h): the next one of the list, as soon as it is ready. `arrival`
// takes whatever has come, backward before forward (AxoNN), with at most `in_flight` microbatches.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/spec/task.h"

namespace trireme {

enum class ScheduleKind {
  gpipe,
  one_forward_one_backward,
  arrival,
  interleaved,
  zero_bubble,
  zero_bubble_v,
  pipedream,
  pipedream_2bw,
  file
};

// A rank's place in its pipeline, and the microbatches that pass it in a step.
struct StagePlace {
  int stage = 0, stages = 1;
  int microbatches = 1;  // that pass this rank
  int chunks = 1;        // parts of the model that the rank holds; they lie as Mesh says
  bool vee = false;
  std::vector<int> replicas{};  // of each stage, where stages differ in it: microbatches are then dealt in turn,
  int replica = 0;              // the first of them to replica 0,
  int dealt = 0;                // so many in all
};

// One thing that a rank does with a microbatch: a forward or a backward pass, or, where these are split, the weights'
// gradients of a backward pass that gave the inputs' only.
struct StageAction {
  TaskKind kind;
  int32_t microbatch;
  int32_t chunk = 0;

  bool operator==(const StageAction&) const = default;
};

using ActionList = std::vector<StageAction>;

// The weights' gradients of a pass are so many tasks, behind each other: a message that comes meanwhile waits for a
// part of them only.
constexpr int32_t weight_slices = 4;

// How many passes the rank has begun in this step; of weights' gradients, how many slices.
struct StageState {
  int32_t forwards = 0, backwards = 0, weights = 0;

  int32_t in_flight() const { return forwards - backwards; }
  int32_t weights_done() const { return weights / weight_slices; }
};

class Schedule {
 public:
  static constexpr size_t none = static_cast<size_t>(-1);

  virtual ~Schedule() = default;
  virtual const char* name() const = 0;
  // The place in `ready`, which is in the order of arrival, of the task to run now; `none`: rather wait for another.
  virtual size_t choose(std::span<const ReadyTask> ready, const StageState& state) const = 0;
  // The pass that a rank with nothing to do is waiting for: a forward, a backward, or neither, when all are done.
  virtual TaskKind awaited(const StageState& state) const = 0;
  // Most microbatches in flight at once, each counted for every chunk that it has passed.
  virtual int in_flight() const = 0;
  // Whether choices depend on when messages come: then they must be made on what is there, not on what is on its way.
  virtual bool follows_arrivals() const { return false; }
  // Whether a backward pass leaves the weights' gradients to tasks of their own.
  virtual bool splits() const { return false; }
  // The order of passes, where it is known beforehand, at least if all takes equally long.
  virtual const ActionList* plan() const { return nullptr; }
};

// What only a list of actions decides: the next one of the list, as soon as it is ready.
class ListSchedule final : public Schedule {
 public:
  ListSchedule(std::string name, ActionList actions);

  const char* name() const override { return name_.c_str(); }
  size_t choose(std::span<const ReadyTask> ready, const StageState& state) const override;
  TaskKind awaited(const StageState& state) const override;
  int in_flight() const override { return in_flight_; }
  bool splits() const override { return splits_; }
  const ActionList* plan() const override { return &actions_; }

 private:
  std::string name_;
  ActionList actions_;
  bool splits_ = false;
  int in_flight_ = 0;
};

// The forward and backward passes of a list, in its order, and weights' gradients whenever the next of these has to
// wait for a message, or for memory. A list with these at fixed places would wait for them where passes take other
// times than it was made for.
class FillingSchedule final : public Schedule {
 public:
  FillingSchedule(std::string name, ActionList plan);

  const char* name() const override { return plan_.name(); }
  size_t choose(std::span<const ReadyTask> ready, const StageState& state) const override;
  TaskKind awaited(const StageState& state) const override;
  int in_flight() const override { return plan_.in_flight(); }
  bool splits() const override { return true; }
  const ActionList* plan() const override { return plan_.plan(); }

 private:
  ListSchedule plan_;
  ActionList passes_;
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

struct ActionTable;

// The settings of schedules (parallel.*), each of which reads some of them.
struct ScheduleOptions {
  int64_t chunks = 0;          // parts of the model on each rank; 0: as many as the schedule has by itself
  int64_t in_flight = 0;       // most microbatches; 0: as many as a pipeline of one rank a stage has
  bool deterministic = false;  // microbatches keep their order
  std::string file{};          // a table of actions,
  std::shared_ptr<const ActionTable> table{};  // which the plan has read
  bool vertical_sync = false;                  // all stages see the weights that the first one saw
  double predict = 0;                          // how far ahead a microbatch sees the weights

  bool operator==(const ScheduleOptions& other) const;  // tables of the same actions are equal, wherever they lie
};

// How the parts of the model lie on the ranks (Mesh).
struct ChunkLayout {
  int chunks = 1;
  bool vee = false;
};

// All that is known of a schedule before it is made: the settings, the mesh, the plan and the trainer ask its row, and
// nothing else tells schedules apart.
struct ScheduleRow {
  ScheduleKind kind;
  const char* name;
  std::unique_ptr<Schedule> (*make)(const char* name, const StagePlace& place, const ScheduleOptions& options);
  // Where backward passes shall leave nothing behind that has to be held, if that makes another schedule of it.
  std::unique_ptr<Schedule> (*make_frugal)(const char* name, const StagePlace& place,
                                           const ScheduleOptions& options) = nullptr;
  std::vector<const char*> options{};  // that it reads: names of settings
  ChunkLayout (*layout)(const ScheduleOptions& options) = nullptr;  // where a rank holds several parts of the model
  bool drains = true;         // or it goes on into the next step before all microbatches of this one have come back,
  bool changes_once = false;  // and weights then change once a step instead of after every round (flow.h)
  bool follows_arrivals = false;  // passes of several replicas may be in different orders

  bool reads(std::string_view option) const;
  bool reads_file() const { return reads("schedule_file"); }
};

const std::vector<ScheduleRow>& all_schedules();
const ScheduleRow& row_of(ScheduleKind kind);

std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, const StagePlace& place, const ScheduleOptions& options,
                                        bool frugal = false);

}  // namespace trireme
