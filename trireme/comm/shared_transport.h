// Collectives among ranks that can see each other's memory: threads of one process, or processes of one host through
// shared memory. An all-reduce is one pass: rank r reads slice r of every rank's buffer and writes the sum to all of
// them, so p ranks read and write each element once between them. Ranks wait for each other on futexes and sleep.
//
// Tensors in memory from allocate() (and, for threads, all tensors) are reduced where they lie; others go through small
// staging buffers, piece by piece.
#pragma once

#include <memory>
#include <string>

#include "trireme/comm/transport.h"

namespace trireme {

// The part that all ranks of the group share; made once and given to each rank's transport.
class SharedGroup;

// A group of `size` threads of this process.
std::shared_ptr<SharedGroup> make_thread_group(int size, std::shared_ptr<SharedGroup> parent = nullptr);

// Rank `rank`'s door to a group of `size` processes of this host, which meet at the path `meeting` (a name in shared
// memory that no other job uses). Waits for the others, `timeout_s` at most.
std::shared_ptr<SharedGroup> meet_processes(const std::string& meeting, int rank, int size, double timeout_s = 120);

std::unique_ptr<Transport> make_shared_transport(std::shared_ptr<SharedGroup> group, int rank);

}  // namespace trireme
