// Who does what: ranks laid out as stages of a pipeline, each stage replicated. The replicas of a stage have
// neighbouring ranks, so that what they reduce stays inside a host where it can.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

struct Mesh {
  int stages = 1, replicas = 1;

  int ranks() const { return stages * replicas; }
  int stage_of(int rank) const { return rank / replicas; }
  int replica_of(int rank) const { return rank % replicas; }
  int rank_of(int stage, int replica) const { return stage * replicas + replica; }
};

// The mesh that the configuration asks for on so many ranks; refuses ranks that it cannot use.
Mesh make_mesh(const ParallelConfig& parallel, int ranks);

// Where each stage begins: `stages` layer numbers, the first of them 0. Given cuts are checked; without them the
// heaviest stage (forward and backward work) is made as light as it can be.
std::vector<int64_t> stage_begins(const LayerTable& table, const ParallelConfig& parallel);

}  // namespace trireme
