#include "trireme/comm/reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "trireme/base/error.h"

namespace trireme {
namespace {

#define ALWAYS_INLINE __attribute__((always_inline)) inline

template <class T>
constexpr bool narrow_float = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;
template <class T>
constexpr bool narrow_integer = std::is_integral_v<T> && sizeof(T) < 4;

// What a type is accumulated in.
template <class T>
using Wide = std::conditional_t<narrow_float<T>, float, std::conditional_t<narrow_integer<T>, int32_t, T>>;

template <class T>
ALWAYS_INLINE T narrowed(Wide<T> value) {
  if constexpr (narrow_integer<T>) {
    constexpr int32_t low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return static_cast<T>(value < low ? low : value > high ? high : value);
  } else {
    return static_cast<T>(value);
  }
}

template <ReduceOp op, class W>
ALWAYS_INLINE W combined(W a, W b) {
  if constexpr (op == ReduceOp::sum) return a + b;
  // A value that is not a number wins, whichever rank it comes from.
  if constexpr (op == ReduceOp::max) return a >= b || a != a ? a : b;
  if constexpr (op == ReduceOp::min) return a <= b || a != a ? a : b;
}

// So many elements at a time that their sums stay in registers, or at worst in the nearest cache: each source is read
// once, and each target written once.
template <class T, ReduceOp op, int64_t lanes>
ALWAYS_INLINE void combine_lanes(std::span<const void* const> sources, std::span<void* const> targets, int64_t first) {
  Wide<T> sums[lanes];
  const T* source = static_cast<const T*>(sources[0]) + first;
  for (int64_t i = 0; i < lanes; ++i) sums[i] = static_cast<Wide<T>>(source[i]);
  for (size_t rank = 1; rank < sources.size(); ++rank) {
    const T* next = static_cast<const T*>(sources[rank]) + first;
    for (int64_t i = 0; i < lanes; ++i) sums[i] = combined<op>(sums[i], static_cast<Wide<T>>(next[i]));
  }
  for (void* target : targets) {
    T* out = static_cast<T*>(target) + first;
    for (int64_t i = 0; i < lanes; ++i) out[i] = narrowed<T>(sums[i]);
  }
}

template <class T, ReduceOp op>
ALWAYS_INLINE void combine_all(std::span<const void* const> sources, std::span<void* const> targets, int64_t count) {
  constexpr int64_t lanes = 256 / static_cast<int64_t>(sizeof(Wide<T>));
  int64_t first = 0;
  for (; first + lanes <= count; first += lanes) combine_lanes<T, op, lanes>(sources, targets, first);
  for (; first < count; ++first) combine_lanes<T, op, 1>(sources, targets, first);
}

template <class T>
ALWAYS_INLINE void reduce_typed(ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
                                int64_t count) {
  switch (op) {
    case ReduceOp::sum: return combine_all<T, ReduceOp::sum>(sources, targets, count);
    case ReduceOp::max: return combine_all<T, ReduceOp::max>(sources, targets, count);
    case ReduceOp::min: return combine_all<T, ReduceOp::min>(sources, targets, count);
  }
}

ALWAYS_INLINE void reduce_any(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                              std::span<void* const> targets, int64_t count) {
  switch (dtype) {
    case at::kDouble: return reduce_typed<double>(op, sources, targets, count);
    case at::kFloat: return reduce_typed<float>(op, sources, targets, count);
    case at::kBFloat16: return reduce_typed<c10::BFloat16>(op, sources, targets, count);
    case at::kHalf: return reduce_typed<c10::Half>(op, sources, targets, count);
    case at::kLong: return reduce_typed<int64_t>(op, sources, targets, count);
    case at::kInt: return reduce_typed<int32_t>(op, sources, targets, count);
    case at::kShort: return reduce_typed<int16_t>(op, sources, targets, count);
    case at::kChar: return reduce_typed<int8_t>(op, sources, targets, count);
    case at::kByte: return reduce_typed<uint8_t>(op, sources, targets, count);
    default: fail("tensors of type {} cannot be reduced", c10::toString(dtype));
  }
}

using Reduce = void (*)(at::ScalarType, ReduceOp, std::span<const void* const>, std::span<void* const>, int64_t);

// The same loops for what the machine can do.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,f16c"))) void reduce_avx512(
    at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
    int64_t count) {
  reduce_any(dtype, op, sources, targets, count);
}

__attribute__((target("avx2,f16c"))) void reduce_avx2(at::ScalarType dtype, ReduceOp op,
                                                      std::span<const void* const> sources,
                                                      std::span<void* const> targets, int64_t count) {
  reduce_any(dtype, op, sources, targets, count);
}

void reduce_plain(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                  std::span<void* const> targets, int64_t count) {
  reduce_any(dtype, op, sources, targets, count);
}

Reduce choose() {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return reduce_avx512;
  if (__builtin_cpu_supports("avx2")) return reduce_avx2;
  return reduce_plain;
}

}  // namespace

void reduce(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
            int64_t count) {
  static const Reduce chosen = choose();
  chosen(dtype, op, sources, targets, count);
}

}  // namespace trireme
