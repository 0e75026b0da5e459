// Pipelines that never drain (PipeDream). A rank passes `ahead` microbatches forward before the first one comes back,
// and from then on one forward, one backward in turn, also from one step into the next: when a step ends, the forward
// passes of the next one's first microbatches are done. Weights change meanwhile, so a microbatch keeps the version
// that its forward pass saw until its backward pass is done (weight stashing).
//
//   pipedream      weights change after every round, which is one microbatch of each of the stage's replicas; a forward
//                  pass sees the newest. Microbatch n of a rank (from 0) sees max(0, n - ahead) rounds, and ahead + 1
//                  versions exist at once. With vertical_sync it sees in every stage what the first stage saw.
//   pipedream_2bw  weights change once a step; the microbatches of step t (from 0) see the weights of max(0, t - 1)
//                  changes, in all stages alike: W(t+1) = W(t) - η ∇f(W(t-1)). Two versions.
//
// Microbatches are counted through the whole run, by each rank for itself.
#pragma once

#include <cstdint>

#include "trireme/spec/action_list.h"
#include "trireme/spec/mesh.h"

namespace trireme {

class Flow {
 public:
  // Of a rank that passes `per_step` microbatches in each step of so many (all that are dealt, or its replica's).
  Flow(ScheduleKind kind, bool vertical_sync, const Mesh& mesh, int stage, int replica, int64_t per_step,
       int64_t dealt);

  int64_t per_step() const { return per_step_; }
  int ahead() const { return ahead_; }
  bool changes_once() const { return changes_once_; }
  int64_t rounds() const { return changes_once() ? 1 : per_step_; }  // changes of the weights in a step
  // Steps whose microbatches may be in flight on any rank at the same time.
  int64_t steps_in_flight() const { return steps_in_flight_; }
  int64_t most_versions() const;
  // How many changes older than the weights that a microbatch changes are those that it sees, once the pipeline is
  // full.
  int64_t delay() const;

  // Microbatches whose forward pass is done when `returned` have come back, of `total`.
  int64_t forwarded(int64_t returned, int64_t total) const;
  // What happens until a step's microbatches are back: numbers of forward passes count from `forwarded`, of backward
  // passes from `returned`.
  ActionList actions(int64_t forwarded, int64_t returned, int64_t total) const;
  // The version that a microbatch's forward pass sees, when the newest is `newest`.
  int64_t version_of(int64_t microbatch, int64_t newest) const;

 private:
  bool changes_once_;
  bool vertical_;
  int64_t per_step_, dealt_;
  int ahead_, replicas_, replica_;
  int first_ahead_, first_replicas_;
  bool even_;
  int64_t steps_in_flight_ = 1;
};

}  // namespace trireme
