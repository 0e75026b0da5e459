// Who gets which samples of a run's batch: checked before the first step, and said where it is not equally.
//
// Of stages with equally many replicas each replica has a share of the batch, in neighbouring places, which it passes
// through its own pipeline in microbatches. Otherwise the microbatches of the whole batch are dealt over the replicas
// of each stage in turn: microbatch b goes to replica b mod r in both directions.
#pragma once

#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/spec/config.h"
#include "trireme/spec/mesh.h"
#include "trireme/spec/share.h"

namespace trireme {

// Refuses more replicas than there are samples or microbatches for, and shares that do not fit them.
void check_shares(const RunConfig& config, const Dataset& data, const Mesh& mesh);

// Of every replica, where stages have equally many.
std::vector<Share> shares_of(const RunConfig& config, const Mesh& mesh);

// The microbatches of `samples` samples that pass a rank, no more than `most` in each (0: its whole share). Replicas
// that exchange statistics inside their passes take equally many.
std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, int rank, int64_t samples, int64_t most);
// Those of a training step.
std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, int rank);

// How many microbatches a step has: of the replicas' pipelines, each once; or dealt over all.
std::vector<int> microbatch_counts(const RunConfig& config, const Mesh& mesh);

// How the batch is dealt, for people; nothing where everybody gets the same.
std::string describe_dealing(const RunConfig& config, const Mesh& mesh);

}  // namespace trireme
