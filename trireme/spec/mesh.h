// Who does what: ranks laid out as stages of a pipeline, each stage replicated. The replicas of a stage have
// neighbouring ranks, so that what they reduce stays inside a host where it can. A stage holds one or several *parts*
// of the model (chunks): of p stages with v chunks, stage s holds the parts s, s+p, s+2p, …, or, as a V, s and 2p-1-s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"
#include "trireme/spec/schedule.h"

namespace trireme {

struct Mesh {
  int stages = 1;
  std::vector<int> replicas_by_stage{};  // empty: one each
  int chunks = 1;
  bool vee = false;

  bool operator==(const Mesh&) const = default;

  int replicas(int stage) const {
    return replicas_by_stage.empty() ? 1 : replicas_by_stage[static_cast<size_t>(stage)];
  }
  int replicas() const { return replicas(0); }  // where they are equal
  bool even() const;                            // whether every stage has as many
  int ranks() const { return first_rank(stages); }
  int stage_of(int rank) const;
  int replica_of(int rank) const { return rank - first_rank(stage_of(rank)); }
  int rank_of(int stage, int replica) const { return first_rank(stage) + replica; }

  int parts() const { return stages * chunks; }
  int part_of(int stage, int chunk) const {
    return vee && chunk % 2 == 1 ? (chunk + 1) * stages - 1 - stage : chunk * stages + stage;
  }
  int chunk_of_part(int part) const { return part / stages; }
  int stage_of_part(int part) const {
    return vee && chunk_of_part(part) % 2 == 1 ? stages - 1 - part % stages : part % stages;
  }

 private:
  int first_rank(int stage) const;
};

// The mesh that the configuration asks for on so many ranks; refuses ranks that it cannot use.
Mesh make_mesh(const ParallelConfig& parallel, int ranks);

// A rank's place in a mesh. Of stages with equally many replicas each replica has a pipeline of its own, through which
// so many microbatches pass in a step; otherwise so many are dealt over the replicas of each stage in turn.
StagePlace place_of(const Mesh& mesh, int stage, int replica, int microbatches);

// Refuses cuts that leave a part without a layer, or that a model of so many layers does not have.
void check_cuts(const std::vector<int64_t>& cuts, int64_t layers);

// Where each part of the model begins: layer numbers, the first of them 0. Given cuts are checked; without them the
// heaviest part (forward and backward work, divided by the replicas that share it) is made as light as it can be.
std::vector<int64_t> part_begins(const LayerTable& table, const ParallelConfig& parallel, const Mesh& mesh);

}  // namespace trireme
