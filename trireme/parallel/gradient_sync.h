// Keeps replicas of a stage together by summing their gradients, bucket by bucket, while the backward pass is still
// running. The gradient slots say when a gradient has been written; a bucket whose last one has come is sent. Buckets
// leave in the same order on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/engine/executor.h"
#include "trireme/optim/store.h"

namespace trireme {

class GradientSync {
 public:
  // `groups`: the replicas of this stage, and then the ranks of each tie.
  struct Groups {
    Group stage = everybody;
    std::vector<Group> ties;

    Group of(const Bucket& bucket) const { return bucket.tie < 0 ? stage : ties[static_cast<size_t>(bucket.tie)]; }
  };

  GradientSync(ParameterStore& store, Communicator& communicator, Groups groups, Executor& executor);
  ~GradientSync();

  // Adds to the step's graph a wire task for each bucket; the compute tasks that need bucket b wait for task_of(b).
  void add_tasks(Graph& graph);
  TaskId task_of(size_t bucket) const { return tasks_[bucket]; }

  // Before the backward pass of a microbatch; only the last one of a step sends anything.
  void begin_backward(bool last);
  // After it: every gradient must have come.
  void end_backward(bool last);

 private:
  void arrived(size_t bucket);

  ParameterStore& store_;
  Communicator& communicator_;
  const Groups groups_;
  Executor& executor_;
  std::vector<TaskId> tasks_;
  std::vector<int64_t> expected_;  // writes that complete each bucket
  std::vector<int64_t> missing_;   // of the pass that runs now
  size_t next_ = 0;                // buckets leave in order: this one is next
  bool sending_ = false;
};

}  // namespace trireme
