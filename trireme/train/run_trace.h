// The timeline of a few steps of a run: each rank records what it does, rank 0 gathers it and writes trace.pftrace, one
// trace of all ranks on one clock, and timeline.svg, the same as a picture.
#pragma once

#include <filesystem>
#include <memory>

#include "trireme/comm/world.h"
#include "trireme/observe/trace.h"
#include "trireme/spec/config.h"
#include "trireme/spec/mesh.h"

namespace trireme {

// Refuses log.trace_steps in a build that cannot write traces.
void check_trace_built();

class RunTrace {
 public:
  RunTrace(const LogConfig& config, World& world, const Mesh& mesh, std::filesystem::path folder);
  ~RunTrace();

  // Around each step; every rank calls both.
  void before(int64_t step);
  void after(int64_t step, bool last);

 private:
  void write();

  const LogConfig& config_;
  World& world_;
  const Mesh& mesh_;
  const std::filesystem::path folder_;
  std::unique_ptr<Trace> trace_;
};

}  // namespace trireme
