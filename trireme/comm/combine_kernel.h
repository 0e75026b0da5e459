// The reduction of comm/reduction on a card, with the same bits: the values are combined in the order of the ranks, by
// the same rules (comm/combine.h).
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "trireme/comm/call.h"

namespace trireme {

constexpr size_t most_card_buffers = 32;

// Given to the stream, on the current card. False for types that cannot be reduced.
bool combine_cuda(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                  std::span<void* const> targets, int64_t count, void* stream);

}  // namespace trireme
