// A rank's step as a value: which tasks it has, what each of them waits for, what comes from other ranks and what goes
// to them. It is built from the plan and the model's table alone. The trainer binds work to its tasks, the simulation
// binds times: what is simulated before the first step is what runs.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/engine/executor.h"
#include "trireme/spec/buckets.h"
#include "trireme/spec/parts.h"
#include "trireme/spec/plan.h"

namespace trireme {

enum class MessageKind : uint16_t { activation, gradient, evaluation, report, order };

// What one rank sends to another. Both know it by this.
struct StepMessage {
  int from = 0, to = 0;  // ranks
  MessageKind kind = MessageKind::activation;
  uint16_t way = 0;    // of what crosses the borders of parts (Crossing)
  int32_t number = 0;  // of the microbatch and the chunk that it goes into, the same on both sides

  auto operator<=>(const StepMessage&) const = default;
};

// The ranks that sum something together: nobody else (a sum is then the rank's own business), the replicas of its stage,
// the stages of a tie with all their replicas, or all ranks. Their sums are numbered in the order in which they make
// them.
struct StepSum {
  enum class Group : uint8_t { own, stage, tie, everybody };
  Group group = Group::own;
  int32_t tie = -1;
  int32_t number = 0;
};

// What a task does. Each is of one kind and in one lane.
enum class Work : uint8_t {
  load,     // takes the step's samples
  receive,  // waits for a message
  forward,
  backward,
  weights,             // a slice of the weights' gradients, where backward passes leave them
  evaluate,            // a forward pass through held-out samples
  sum_bucket,          // of gradients, when all passes of its round have written them
  sum_totals,          // loss and norm of the job, and what else all ranks know together
  sum_totals_before,   // the same of the step before
  sum_evaluation,
  sum_tie,             // gradients of the step before that several stages share
  exchange,            // with whomever a loose kind exchanges
  measure,             // the norm of a bucket's gradients
  share_step,          // tells the other stages of a replica what this one knows of the step
  gather_step,         // all of them have told it
  decide,              // by the totals: update or skip
  count,               // an update that did not wait for the totals
  adopt,               // what a loose kind has exchanged
  report,              // of a step of a pipeline that never drains
  update_bucket,       // if it was decided so
  update_at_once,      // as soon as it has been summed
  update_and_spread,   // by its root, which sends the parameters on
  update_loosely,      // as the loose kind does
  update_round,        // of a pipeline that never drains
  update_ties,         // by the gradients of the step before
};

struct StepTask {
  Work work = Work::load;
  int32_t index = -1;  // of the microbatch, the bucket, or the round
  int32_t chunk = 0;   // of a pass, or of its message: which of the rank's parts of the model
  int32_t piece = 0;   // of weights' gradients the slice; of a message the place of its way among those of the part
  StepMessage message{};             // that it waits for
  StepSum sum{};                     // that it makes with others
  std::vector<StepMessage> sends{};  // that leave when it is done
};

TaskKind kind_of(Work work);
Lane lane_of(Work work);

struct StepGraph {
  struct Wait {
    TaskId task, after;
  };
  std::vector<StepTask> tasks;
  std::vector<Wait> waits;
  // The sums of gradients, by bucket, of each round of passes that write them. They wait for these gradients, besides.
  std::vector<std::vector<TaskId>> rounds;

  TaskId add(StepTask task, const std::vector<TaskId>& after = {});
  void wait(TaskId task, TaskId after) { waits.push_back({task, after}); }
};

// The same with work bound to its tasks.
using Binding = std::function<std::function<void()>(TaskId id, const StepTask& task)>;
Graph bind(const StepGraph& step, const Binding& work);

// Where a step of a pipeline that never drains begins: in numbers of the rank's own microbatches of the run.
struct FlowPosition {
  int64_t forwarded = 0, returned = 0;
  int64_t total = 0;   // microbatches of the whole run
  bool obeys = false;  // an order of rank 0 is due
  bool owes = false;   // gradients of the step before, of what stages share, have not been summed
};

class StepBuilder {
 public:
  // `schedule`: the rank's. Plan and schedule outlive the builder.
  StepBuilder(const Plan& plan, const LayerTable& table, int rank, const Schedule& schedule);

  // A step of a pipeline that drains.
  StepGraph step() const;
  // A step of one that never does; and, at its end, the sums and updates that it still owes.
  StepGraph flow_step(const FlowPosition& position) const;
  StepGraph owed_ties() const;
  // An evaluation of so many microbatches.
  StepGraph evaluation(size_t microbatches) const;

  // What crosses the borders of the rank's parts, by chunk.
  const std::vector<Crossings>& chunks() const { return chunks_; }
  // A crossing's message, wherever on this rank it comes or goes, of one of the rank's own microbatches.
  StepMessage message(MessageKind kind, const Crossing& crossing, size_t microbatch) const;
  bool has_ties() const;

 private:
  using Passes = std::vector<std::vector<TaskId>>;  // by chunk and microbatch

  std::vector<TaskId> add_arrivals(StepGraph& step, MessageKind kind, int32_t chunk, size_t microbatch,
                                   const Passes& before) const;
  std::vector<TaskId> add_passes(StepGraph& step, TaskId load) const;
  std::vector<StepMessage> sends_of(MessageKind kind, int32_t chunk, size_t microbatch) const;
  std::vector<TaskId> add_receives(StepGraph& step, MessageKind kind, int32_t index, size_t microbatch) const;
  void add_sums(StepGraph& step) const;
  StepSum sum_of(size_t bucket) const;
  void add_decision(StepGraph& step, const std::vector<TaskId>& passes) const;
  void add_updates_at_once(StepGraph& step, const std::vector<TaskId>& passes) const;
  void add_updates_ahead(StepGraph& step, const std::vector<TaskId>& passes) const;
  void add_loose_update(StepGraph& step, const std::vector<TaskId>& passes) const;
  TaskId add_step_sharing(StepGraph& step, const std::vector<TaskId>& passes) const;
  TaskId add_ties(StepGraph& step) const;
  void add_reports(StepGraph& step, TaskId last, bool obeys) const;

  const Plan& plan_;
  const int rank_, stage_;
  const bool splits_;
  const size_t microbatches_;  // of a step that pass this rank,
  const int numbers_;          // and its pipeline
  std::vector<Crossings> chunks_;
  std::vector<BucketShape> buckets_;
  std::vector<bool> updates_;  // by bucket: whether this rank changes its parameters
};

}  // namespace trireme
