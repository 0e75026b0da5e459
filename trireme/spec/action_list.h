// Schedules as lists of actions: in which order a rank does the passes of a step. *p* stages, *m* microbatches, *v*
// chunks a rank; a slot is a third of a microbatch's work on a rank (forward, inputs' gradients, weights' gradients).
//
//   gpipe          all forward passes, then all backward passes
//   1f1b           p-s-1 forward passes in stage s, then one forward, one backward in turn, then the backward passes
//                  left; a rank waits for 3(p-1) slots
//   interleaved    1f1b over p·v chunks, which pass p microbatches at a time (Megatron), with the weights' gradients
//                  apart: as they fill what would be waits, (p-1)/v slots in the memory of Megatron's 3(p-1)/v
//   zero_bubble    backward passes give the inputs' gradients; the weights' gradients fill what would be waits (ZB-H1):
//                  p-1 slots, and the memory of 1f1b's first stage. With up to 2p-1 microbatches in flight (ZB-H2) a
//                  rank waits only before its first and after its last pass
//   zero_bubble_v  the same on two chunks of each rank that lie as a V: first and last chunk on the first rank; half
//                  the waits of zero_bubble in its memory (ZB-V)
//
// With unequal replicas (PipeDream's 1F1B-RR) stage s with r_s of R ranks begins with ⌊(R-1-Σ_{i<s} r_i)/r_s⌋ forward
// passes.
#pragma once

#include "trireme/spec/schedule.h"

namespace trireme {

// Forward passes that a rank does before forward and backward passes take turns.
int warm_up(const StagePlace& place);
// Microbatches that the ranks of this stage would hold if they were the first stage under 1f1b.
int first_stage_in_flight(const StagePlace& place);

ActionList gpipe_actions(const StagePlace& place);
ActionList one_forward_one_backward_actions(const StagePlace& place);
// `split`: or backward passes are whole.
ActionList interleaved_actions(const StagePlace& place, bool split);
// `in_flight` 0: as first_stage_in_flight().
ActionList zero_bubble_actions(const StagePlace& place, int in_flight);
ActionList zero_bubble_v_actions(const StagePlace& place);

// Whether weights' gradients are actions of their own.
bool splits(const ActionList& actions);

}  // namespace trireme
