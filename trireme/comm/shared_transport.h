// Ranks that share memory: threads of one process, or processes of one host. Gradient buckets lie in memory that all
// ranks of the group have mapped, and are reduced where they lie (shared_collectives); ranks wait for each other on
// futexes (shared_meeting).
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
