// Policies that only say who comes first: in that order each job takes the fastest type that still has room for it.
#pragma once

#include <vector>

#include "trireme/fleet/policy.h"

namespace trireme::fleet {

// `order` lists places in view.jobs. Jobs that fit nowhere are passed over.
Allocation allocate_in_order(const ClusterView& view, const std::vector<size_t>& order);

}  // namespace trireme::fleet
