// Element-wise reduction of several ranks' buffers, always in the order of the ranks: every rank gets the same bits,
// and so does every run.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "trireme/comm/call.h"

namespace trireme {

// targets[k][i] = sources[0][i] op sources[1][i] op … for i < count. Targets may be the sources themselves.
// bf16 and fp16 are accumulated in fp32, integers of 8 and 16 bits in 32; what does not fit these again becomes their
// largest or smallest value.
void reduce(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
            int64_t count);

}  // namespace trireme
