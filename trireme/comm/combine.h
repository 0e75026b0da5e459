// How two values are combined, for cores and cards alike: what a type is accumulated in, and how the result becomes one
// of that type again.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "trireme/comm/call.h"

// Always inlined, so that it is compiled for whatever the function around it is compiled for.
#define TRIREME_INLINE __attribute__((always_inline)) inline

namespace trireme {

template <class T>
constexpr bool narrow_float = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;
template <class T>
constexpr bool narrow_integer = std::is_integral_v<T> && sizeof(T) < 4;

// What a type is accumulated in.
template <class T>
using Wide = std::conditional_t<narrow_float<T>, float, std::conditional_t<narrow_integer<T>, int32_t, T>>;

template <class T>
C10_HOST_DEVICE TRIREME_INLINE T narrowed(Wide<T> value) {
  if constexpr (narrow_integer<T>) {
    constexpr int32_t low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    return static_cast<T>(value < low ? low : value > high ? high : value);
  } else {
    return static_cast<T>(value);
  }
}

template <ReduceOp op, class W>
C10_HOST_DEVICE TRIREME_INLINE W combined(W a, W b) {
  if constexpr (op == ReduceOp::sum) return a + b;
  // A value that is not a number wins, whichever rank it comes from.
  if constexpr (op == ReduceOp::max) return a >= b || a != a ? a : b;
  if constexpr (op == ReduceOp::min) return a <= b || a != a ? a : b;
}

// Calls visit.template operator()<T, op>() for the type and the operation; false where there is no such type.
template <class T, class Visit>
TRIREME_INLINE bool visit_op(ReduceOp op, const Visit& visit) {
  switch (op) {
    case ReduceOp::sum: visit.template operator()<T, ReduceOp::sum>(); return true;
    case ReduceOp::max: visit.template operator()<T, ReduceOp::max>(); return true;
    case ReduceOp::min: visit.template operator()<T, ReduceOp::min>(); return true;
  }
  return false;
}

template <class Visit>
TRIREME_INLINE bool visit_reduction(at::ScalarType dtype, ReduceOp op, const Visit& visit) {
  switch (dtype) {
    case at::kDouble: return visit_op<double>(op, visit);
    case at::kFloat: return visit_op<float>(op, visit);
    case at::kBFloat16: return visit_op<c10::BFloat16>(op, visit);
    case at::kHalf: return visit_op<c10::Half>(op, visit);
    case at::kLong: return visit_op<int64_t>(op, visit);
    case at::kInt: return visit_op<int32_t>(op, visit);
    case at::kShort: return visit_op<int16_t>(op, visit);
    case at::kChar: return visit_op<int8_t>(op, visit);
    case at::kByte: return visit_op<uint8_t>(op, visit);
    default: return false;
  }
}

}  // namespace trireme
