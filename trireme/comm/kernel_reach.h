// Whether the ranks of a host may read and write each other's memory through the kernel (process_vm_readv), which saves
// a copy. A user's processes may as a rule. Where the security module Yama is in its usual mode
// (kernel.yama.ptrace_scope is 1), a process may do so only to those that descend from it, and to those that have named
// it or a process from which it descends. So ranks name the nearest process from which they all descend, such as
// mpirun, and stay closed to all that the user runs elsewhere.
#pragma once

#include <sys/types.h>

#include <vector>

#include "trireme/comm/shared_meeting.h"

namespace trireme {

// This process and those from which it descends, as far as the system shows them; the nearest first.
std::vector<pid_t> line_of_descent(pid_t process);

// The first process that is in all of the lines; 0 where there is none.
pid_t common_ancestor(const std::vector<std::vector<pid_t>>& lines);

// Finds out by trying whether every rank reaches every other. Collective, with the same answer on all ranks; each then
// knows who the others are (SharedGroup::processes). The first rank of a job logs it where they do not.
bool try_reaching(SharedMeeting& meeting);

}  // namespace trireme
