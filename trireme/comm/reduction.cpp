#include "trireme/comm/reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr int64_t block = 2048;  // elements accumulated at a time: stays in the first-level cache

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;

template <class T>
void combine(ReduceOp op, Wide<T>* accumulator, const T* source, int64_t count) {
  switch (op) {
    case ReduceOp::sum:
      for (int64_t i = 0; i < count; ++i) accumulator[i] += static_cast<Wide<T>>(source[i]);
      break;
    // A value that is not a number wins, whichever rank it comes from.
    case ReduceOp::max:
      for (int64_t i = 0; i < count; ++i) {
        const auto a = accumulator[i], b = static_cast<Wide<T>>(source[i]);
        accumulator[i] = a >= b || a != a ? a : b;
      }
      break;
    case ReduceOp::min:
      for (int64_t i = 0; i < count; ++i) {
        const auto a = accumulator[i], b = static_cast<Wide<T>>(source[i]);
        accumulator[i] = a <= b || a != a ? a : b;
      }
      break;
  }
}

template <class T>
void reduce_typed(ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets, int64_t count) {
  alignas(64) Wide<T> accumulator[block];
  for (int64_t first = 0; first < count; first += block) {
    const int64_t size = std::min(block, count - first);
    const T* source = static_cast<const T*>(sources[0]) + first;
    for (int64_t i = 0; i < size; ++i) accumulator[i] = static_cast<Wide<T>>(source[i]);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      combine<T>(op, accumulator, static_cast<const T*>(sources[rank]) + first, size);
    }
    for (void* target : targets) {
      T* out = static_cast<T*>(target) + first;
      for (int64_t i = 0; i < size; ++i) out[i] = static_cast<T>(accumulator[i]);
    }
  }
}

}  // namespace

void reduce(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
            int64_t count) {
  switch (dtype) {
    case at::kDouble: return reduce_typed<double>(op, sources, targets, count);
    case at::kFloat: return reduce_typed<float>(op, sources, targets, count);
    case at::kBFloat16: return reduce_typed<c10::BFloat16>(op, sources, targets, count);
    case at::kHalf: return reduce_typed<c10::Half>(op, sources, targets, count);
    case at::kLong: return reduce_typed<int64_t>(op, sources, targets, count);
    case at::kInt: return reduce_typed<int32_t>(op, sources, targets, count);
    default: fail("tensors of type {} cannot be reduced", c10::toString(dtype));
  }
}

}  // namespace trireme
