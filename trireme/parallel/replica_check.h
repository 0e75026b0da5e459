// Replicas must hold the same parameters, bit for bit. A faulty processor or memory can make one drift without any
// error; comparing checksums finds it.
#pragma once

#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/optim/store.h"

namespace trireme {

// Ranks of the group whose parameters differ from what most of them hold, or all of them where no majority agrees (of
// two nobody can say which is right). Mostly none. Collective, the same on all.
std::vector<int> differing_replicas(const ParameterStore& store, Communicator& communicator, Group group);

// Refuses, on all ranks, parameters that are not the same everywhere, with the names of those that are not. Collective.
void check_same_parameters(const ParameterList& parameters, Communicator& communicator);

}  // namespace trireme
