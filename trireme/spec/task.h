// The kinds of work that a training step is made of.
#pragma once

#include <cstdint>

namespace trireme {

enum class TaskKind : uint8_t { load, forward, backward, weights, reduce, norm, decide, optimize, evaluate, receive };

const char* name(TaskKind kind);

// What a schedule sees of a task that is ready.
struct ReadyTask {
  TaskKind kind;
  int32_t index;      // microbatch or bucket
  uint32_t order;     // place in which the step lists it
  int32_t chunk = 0;  // of a pass: which of the rank's parts of the model
};

}  // namespace trireme
