// Who gets which samples of a run's batch: checked before the first step, and said where it is not equally.
#pragma once

#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/spec/config.h"
#include "trireme/spec/mesh.h"
#include "trireme/spec/share.h"

namespace trireme {

// Refuses more replicas than there are samples for, and shares that do not fit them.
void check_shares(const RunConfig& config, const Dataset& data, const Mesh& mesh);

// Of every replica.
std::vector<Share> shares_of(const RunConfig& config, const Mesh& mesh);
// That of a rank's replica, once all of them have been checked.
Share checked_share(const RunConfig& config, const Dataset& data, const Mesh& mesh, int rank);

// The microbatches of a replica's share. Replicas that exchange statistics inside their passes take equally many.
std::vector<Share> pieces_of(const RunConfig& config, const Mesh& mesh, Share share);

// How the batch is dealt, for people; nothing where everybody gets the same.
std::string describe_dealing(const RunConfig& config, const Mesh& mesh);

}  // namespace trireme
