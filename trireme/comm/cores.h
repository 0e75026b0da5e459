// How many cores a process may count on.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <bitset>
#include <vector>

namespace trireme {

// Cores that this process may use (its affinity and its cgroup's quota).
int usable_cores();

using CoreSet = std::bitset<CPU_SETSIZE>;

// Of the cores `mine` a rank's part, where the ranks of its host, itself among them, may use `all`, and together no
// more than `quota` cores' time. Ranks that their launcher has bound to cores of their own do not share them.
double own_part(const CoreSet& mine, const std::vector<CoreSet>& all, double quota);
// The same of this process and the ranks that these processes are.
double own_cores(const std::vector<pid_t>& ranks);

}  // namespace trireme
