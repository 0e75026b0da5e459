// The kinds of work that a training step is made of, and the policy that orders them.
#pragma once

#include <cstdint>
#include <span>

namespace trireme {

enum class TaskKind : uint8_t { load, forward, backward, reduce, norm, decide, optimize, evaluate, copy };

const char* name(TaskKind kind);

// What a schedule sees of a task that is ready.
struct ReadyTask {
  TaskKind kind;
  int32_t index;   // microbatch or bucket
  uint32_t order;  // place in which the step lists it
};

// Of the tasks that are ready, which next. Schedules are stateless policies; how many microbatches are in flight
// follows from the dependencies that they allow.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual const char* name() const = 0;
  virtual size_t choose(std::span<const ReadyTask> ready) const = 0;
};

// The order in which the step lists its tasks: forward, backward, microbatch by microbatch.
class InOrder final : public Schedule {
 public:
  const char* name() const override { return "in_order"; }
  size_t choose(std::span<const ReadyTask> ready) const override;
};

}  // namespace trireme
