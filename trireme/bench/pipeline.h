// `trireme bench pipeline`: a GPT cut into stages beside torch.distributed.pipelining, with the same weights, batches,
// cuts and schedule; with and without delays on every message; what the engine costs a task; and pictures of each
// schedule's timeline.
#pragma once

#include <functional>
#include <string>

#include "trireme/observe/bench_line.h"

namespace trireme {

struct PipelineBenchOptions {
  int stages = 4;
  int repeats = 3;
  int steps = 8;
  int context = 0;       // tokens of a sequence; 0: 128, and for small microbatches 64, 128 and 256
  int threads = 0;       // of each of our stages; 0: a stage's share of the cores
  int peer_threads = 0;  // 0: as many as prove best
  double jitter_ms = 20;
  std::string only;  // one case: large, small, jitter, schedules, bubble, engine; empty: all
  std::string plot;  // folder for pictures; empty: none
  std::string python = TRIREME_PYTHON;
};

void run_pipeline_bench(const PipelineBenchOptions& options, const std::function<void(const BenchLine&)>& each);

}  // namespace trireme
