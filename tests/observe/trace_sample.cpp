// Prints the trace of a made-up step of two ranks, for trace_reader.py to read.
#include <iostream>

#include "trireme/observe/trace.h"

int main() {
  using trireme::TraceTrack;
  const uint64_t activations = trireme::arrow_id(0, 1, 7, 0, 0);
  trireme::Trace first(16), second(16);

  first.add({.name = "layer", .index = 0, .step = 7, .begin_ns = 1000, .end_ns = 1400});
  first.add({.name = "forward", .index = 0, .step = 7, .begin_ns = 1000, .end_ns = 2000});
  first.add({.name = "decide", .step = 7, .begin_ns = 2000, .end_ns = 2000});
  first.add({.track = TraceTrack::communication,
             .name = "send",
             .index = 0,
             .step = 7,
             .begin_ns = 2000,
             .end_ns = 2600,
             .arrow_out = activations});
  first.add(
      {.track = TraceTrack::communication, .name = "reduce", .index = 1, .step = 7, .begin_ns = 2300, .end_ns = 3000});

  // This rank's clock is 10,000 ns ahead.
  second.add({.track = TraceTrack::waiting, .name = "wait", .step = 7, .begin_ns = 11000, .end_ns = 12600});
  second.add({.name = "forward", .index = 0, .step = 7, .begin_ns = 12600, .end_ns = 14000, .arrow_in = activations});

  std::cout << encode_trace(first.spans(), 0, "rank 0 (stage 0)", 0)
            << encode_trace(second.spans(), 1, "rank 1 (stage 1)", -10000);
}
