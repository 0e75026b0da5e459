// Which elements of a tensor are the largest in magnitude, exactly, in one pass over it: a sample tells what surely
// lies below, and only the few that are left are compared with each other.
#pragma once

#include <cstdint>
#include <span>

namespace trireme {

// Both add the values to the residual, where there is one, and look at the sums. The places are in ascending order, and
// lie in memory of this thread until its next call.

// All elements whose magnitude (targets.h) is at least `least`; NaN is larger than anything.
std::span<const uint32_t> select_at_least(const float* values, float* residual, int64_t count, int32_t least);

// The `kept` largest elements, of equal ones the first.
std::span<const uint32_t> select_largest(const float* values, float* residual, int64_t count, int64_t kept);

}  // namespace trireme
