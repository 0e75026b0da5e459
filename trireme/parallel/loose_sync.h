// Ways to keep replicas together in which a rank does not wait, in every step, for what all the others did in it. Each
// is a class of this interface. The trainer calls it from three tasks of the step's graph, after the passes:
//
//   passes → update (compute) → exchange (wire: ends when the rank may go on) → adopt (compute)
//
// Between them a rank works on messages that come whenever they come. From time to time all ranks stand *together* in
// one step: then they may evaluate, save, stop, or end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/postbox.h"
#include "trireme/comm/world.h"
#include "trireme/observe/step_report.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/store.h"
#include "trireme/spec/config.h"
#include "trireme/spec/progression.h"

namespace trireme {

class BucketSums;

// What a policy works with; all of it outlives the policy.
struct Replica {
  const RunConfig& config;
  World& world;
  ParameterStore& store;
  const Optimizer& optimizer;
  Progression& progression;
  Postbox* postbox = nullptr;  // where the kind sends messages: to and from every other rank
  double share = 1;            // of the batch: this replica's part, of 1 in all
  CodecConfig codec;           // of sums
  // Where a replica is cut into stages, on ranks of their own: this rank's stage, and who has the same one.
  int stages = 1, stage = 0;
  Group holders = everybody;
};

// What this rank's passes of a step gave. Gradients lie in the store.
struct OwnStep {
  int64_t number = 0;  // of this rank's own steps, from 1
  double loss = 0;     // its samples' part of the loss of the whole batch, as its gradients are of the whole gradient
  bool wants_stop = false;
  // The squares of all its gradients, where other ranks hold some of them; these are known here then, as the loss is.
  std::optional<double> squares;
};

// Tensors that belong to this rank alone, by name: what it needs to go on exactly as if nothing had happened.
using OwnState = std::map<std::string, at::Tensor>;

class LooseSync {
 public:
  explicit LooseSync(const Replica& replica);
  virtual ~LooseSync() = default;
  LooseSync(const LooseSync&) = delete;
  LooseSync& operator=(const LooseSync&) = delete;

  // Before the first step: the parameters are those to begin with.
  virtual void begin();
  virtual void update(const OwnStep& step) = 0;
  virtual void exchange(const Communicator::Done& go_on) { go_on(nullptr); }
  virtual void adopt() {}

  // Steps that this rank has done itself, and that the job has done as far as this rank knows.
  int64_t own_steps() const;
  virtual int64_t job_step() const { return own_steps(); }
  // Batches that all ranks together have worked through, as far as this rank knows: the job's steps, unless some of
  // them lacked a rank's part.
  virtual double batches() const { return static_cast<double>(job_step()); }
  // After a step: whether all ranks stand together in it, and whether they agreed to stop there.
  bool together() const { return together_; }
  bool stop_agreed() const { return stop_agreed_; }
  // What this rank knows of the job's loss, and of the gradient that it used last; whether that changed anything.
  double loss() const { return loss_; }
  double grad_norm() const { return grad_norm_; }
  bool updated() const { return updated_; }
  // How many steps (or updates, where the kind counts these) the gradients used so far lacked: how often 0, 1, 2 …
  std::vector<int64_t> staleness() const;

  // Collective, when together: while `use` runs, the store holds the parameters that the replicas agree on; with
  // `state` the ranks that save have the optimizer's state too.
  virtual void with_agreed(bool state, const std::function<void()>& use) = 0;
  // Collective, when together. The tensors are those in use: what is written into them counts from the next step on.
  virtual OwnState own_state() { return {{"own_steps", own_steps_}}; }
  // Where the kind makes sums.
  virtual BucketSums* sums() { return nullptr; }
  // Whether replicas hold the same parameters whenever they stand together.
  virtual bool equal_when_together() const { return true; }

  // Whether a kind sends messages from rank to rank.
  static bool sends_messages(SyncKind kind);

 protected:
  // Whether all ranks should stand together after this step of the job, because something is due there.
  bool meets(int64_t step) const;
  double rate(int64_t step) const;  // the learning rate
  std::vector<Bucket>& buckets() { return replica_.store.buckets(); }
  Communicator& communicator() { return replica_.world.communicator(); }
  int rank() const { return replica_.world.rank(); }
  int ranks() const { return replica_.world.size(); }

  void count_own(const OwnStep& step);
  // Looks at gradients whose squares sum up to this, and the loss that goes with them: false where something is not
  // finite, which counts as a step that is skipped. Otherwise `scale` is what clipping leaves of them.
  bool judge(double squares, double loss, double& scale);
  // Changes all parameters by the gradients in the store.
  void apply(int64_t number, double lr, double scale);
  // Goes by the mean over this rank's own samples, at a share of the learning rate.
  void step_alone(const OwnStep& step, double share_of_rate = 1);
  // Sum of the squares of tensors laid out like the buckets.
  static double squares_of(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> gradients();
  void note_staleness(int64_t steps);
  // While `use` runs the masters are the mean over ranks, each of which counts `weight` (1 in sum over all).
  void with_mean(double weight, const std::function<void()>& use);
  // Adds every bucket's master and optimizer state, where each replica has its own.
  void add_own_parameters(OwnState& state);

  Replica replica_;
  bool together_ = true, stop_agreed_ = false, updated_ = true;
  double loss_ = 0, grad_norm_ = 0;

 private:
  mutable std::mutex staleness_mutex_;  // message threads note it too
  std::vector<int64_t> staleness_;
  at::Tensor own_steps_;
};

std::unique_ptr<LooseSync> make_loose_sync(const Replica& replica);

// Tensors laid out like the store's buckets, for what travels; zeros.
std::vector<at::Tensor> like_buckets(Replica& replica);

}  // namespace trireme
