// Keeps replicas of a stage together by summing their gradients, bucket by bucket, while the backward pass is still
// running. The gradient slots say when a gradient has been written; a bucket whose last one has come is sent. Buckets
// leave in the same order on every rank.
//
// `allreduce`: all replicas get the sums, and each changes its parameters alike. `root` (as OSU-Caffe does it): each
// bucket has a root among the replicas, to which the gradients are reduced, and which alone keeps the optimizer's state
// and changes the parameters. It then sends them to the others, those of the first layers first, and the next forward
// pass waits for a layer's parameters only when it comes to that layer.
//
// With `sync.order=forward` gradients are summed in an order that suits the next forward pass (agreed_order), and the
// step does not wait for them: who uses or changes a bucket's parameters waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/engine/executor.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/store.h"
#include "trireme/parallel/agreed_order.h"
#include "trireme/parallel/bucket_sums.h"
#include "trireme/spec/config.h"

namespace trireme {

class GradientSync {
 public:
  // `groups`: the replicas of this stage, and then the ranks of each tie.
  struct Groups {
    Group stage = everybody;
    std::vector<Group> ties;

    Group of(int tie) const { return tie < 0 ? stage : ties[static_cast<size_t>(tie)]; }
    Group of(const Bucket& bucket) const { return of(bucket.tie); }
    std::vector<Group> of(const std::vector<Bucket>& buckets) const;
  };

  // `totals`: what else the ranks sum at the end of a step. `sums`: how buckets are summed, if not by an all-reduce.
  GradientSync(const SyncConfig& config, ParameterStore& store, Communicator& communicator, Groups groups,
               Executor& executor, const at::Tensor& totals, BucketSums* sums = nullptr);
  ~GradientSync();

  // The wire tasks of a step that sum its buckets, in their order; each waits for one signal from here, and its work is
  // send().
  using Sends = std::vector<TaskId>;
  void send(size_t bucket);

  // Before the first backward pass of a step of so many: a bucket is sent, by these tasks, when all of them have
  // written it. Without tasks nothing is sent (loose_sync). The step's number is that of its sums (BucketSums).
  void begin_step(int64_t number, int64_t passes, const Sends& sends);
  // Until then nothing is sent: backward passes before the last one of a step whose number nobody knows yet.
  void hold();
  // Around a backward pass through layers with these parameters: what it leaves out, where it may, has no gradient.
  static void begin_pass(const ParameterList& parameters);
  void end_pass(const ParameterList& parameters);
  // How many buckets of the step have been sent.
  size_t sent() const { return next_; }
  // When all gradients of the step should have come: fails where some have not.
  void check_complete() const;

  // Sums the totals, by the same road as the buckets and after them; completes the task.
  void sum_totals(TaskId task);

  // Whether the step ends before the buckets have been summed: await() tells when one has.
  bool ahead() const { return order_ != nullptr; }

  // Whether this rank changes the bucket's parameters, and so needs the optimizer's state.
  bool updates(size_t bucket) const { return roots_.empty() || roots_[bucket].here; }
  // The order in which spread() is called for all buckets, after the root has changed its own; the same on all ranks.
  const std::vector<size_t>& spread_order() const { return spread_order_; }
  void spread(size_t bucket);
  // Returns when a bucket's parameters have come, or, ahead(), its gradients; of all buckets.
  void await(size_t bucket);

  // Around a save, on all ranks: brings all state of the optimizer to the first rank of each bucket's group, and lets
  // go what this rank does not need otherwise.
  void gather_state(const Optimizer& optimizer);
  void release_state();

 private:
  // Who changes a bucket, as a rank of its group.
  struct Root {
    int rank = 0;
    bool here = false;
  };

  void choose_roots();
  void arrived(size_t bucket);

  const SyncKind kind_;
  ParameterStore& store_;
  Communicator& communicator_;
  const Groups groups_;
  Executor& executor_;
  int64_t number_ = 0;             // of the step that runs
  Sends tasks_;                    // of the same
  std::vector<int64_t> expected_;  // writes of one microbatch, by bucket
  std::vector<int64_t> missing_;   // in this step
  size_t next_ = 0;                // buckets leave in order: this one is next
  bool told_unused_ = false;
  const at::Tensor totals_;
  BucketSums* sums_;
  TaskId totals_task_ = 0;
  std::unique_ptr<AgreedOrder> order_;
  std::vector<Root> roots_;  // by bucket; none with allreduce
  std::vector<size_t> spread_order_;
  std::vector<std::optional<Communicator::Ticket>> coming_;  // by bucket: its parameters
};

}  // namespace trireme
