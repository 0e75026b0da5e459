// Spans of work on a card, for the trace: when the card did it, not when it was given to it. Marks are put into the
// streams beside the work and read when the step is over. On the CPU there is nothing to do: the executor's own spans
// say when work was done.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "trireme/observe/recorder.h"

namespace trireme {

class DeviceTrace {
 public:
  DeviceTrace(at::Device device, const Recorder& recorder);
  ~DeviceTrace();

  // Between steps: what was marked goes into the trace that is being recorded. Waits for the card.
  void settle();

 private:
  friend class DeviceSpan;
  struct State;
  std::unique_ptr<State> state_;
};

// The work that is given to the calling thread's stream while this lives. `trace` may be null.
class DeviceSpan {
 public:
  struct Marks;

  DeviceSpan(DeviceTrace* trace, const TraceSpan& about);
  ~DeviceSpan();
  DeviceSpan(const DeviceSpan&) = delete;

 private:
  DeviceTrace* trace_ = nullptr;
  std::unique_ptr<Marks> marks_;
};

}  // namespace trireme
