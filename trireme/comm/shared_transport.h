// Ranks that share memory: threads of one process, or processes of one host. Gradient buckets lie in memory that all
// ranks of the group have mapped, and are reduced where they lie (shared_collectives); ranks wait for each other on
// futexes (shared_meeting).
#pragma once

#include <functional>
#include <memory>

#include "trireme/base/segment.h"
#include "trireme/comm/transport.h"

namespace trireme {

class Board;

// The part that all ranks of the group share; made once and given to each rank's transport.
class SharedGroup;

// A group of `size` threads of this process.
std::shared_ptr<SharedGroup> make_thread_group(int size, std::shared_ptr<SharedGroup> parent = nullptr);

// Rank `rank`'s door to a group of `size` processes of this host. The first makes their memory, and `tell_all` returns
// on all of them the name that the first gives. Waits for the others, `timeout_s` at most.
using TellAll = std::function<SegmentName(const SegmentName& of_first)>;
std::shared_ptr<SharedGroup> meet_processes(int rank, int size, const TellAll& tell_all, double timeout_s = 120);
// The same by the board of a job whose ranks are all on this host.
std::shared_ptr<SharedGroup> meet_processes(Board& board, int rank, double timeout_s = 120);

std::unique_ptr<Transport> make_shared_transport(std::shared_ptr<SharedGroup> group, int rank);

}  // namespace trireme
