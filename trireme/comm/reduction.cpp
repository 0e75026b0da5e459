#include "trireme/comm/reduction.h"

#include "trireme/base/error.h"
#include "trireme/comm/combine.h"

namespace trireme {
namespace {

// So many elements at a time that their sums stay in registers, or at worst in the nearest cache: each source is read
// once, and each target written once.
template <class T, ReduceOp op, int64_t lanes>
TRIREME_INLINE void combine_lanes(std::span<const void* const> sources, std::span<void* const> targets, int64_t first) {
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

// The same for a number of ranks that the compiler knows: every address stays in a register, and one cache line of sums
// does too. Twice as fast as the loop above, which memory is not the limit of. Targets are as many as the sources, or
// one.
template <class T, int ranks, int targets>
TRIREME_INLINE int64_t sum_few(const void* const* sources, void* const* results, int64_t count) {
  constexpr int64_t lanes = 64 / static_cast<int64_t>(sizeof(Wide<T>));
  const T* from[ranks];
  T* to[targets];
  for (int r = 0; r < ranks; ++r) from[r] = static_cast<const T*>(sources[r]);
  for (int r = 0; r < targets; ++r) to[r] = static_cast<T*>(results[r]);
  int64_t first = 0;
  for (; first + lanes <= count; first += lanes) {
    Wide<T> sums[lanes];
    for (int64_t i = 0; i < lanes; ++i) sums[i] = static_cast<Wide<T>>(from[0][first + i]);
#pragma GCC unroll 8
    for (int r = 1; r < ranks; ++r) {
      for (int64_t i = 0; i < lanes; ++i) sums[i] += static_cast<Wide<T>>(from[r][first + i]);
    }
    T rounded[lanes];
    for (int64_t i = 0; i < lanes; ++i) rounded[i] = narrowed<T>(sums[i]);
#pragma GCC unroll 8
    for (int r = 0; r < targets; ++r) {
      for (int64_t i = 0; i < lanes; ++i) to[r][first + i] = rounded[i];
    }
  }
  return first;
}

template <class T, int ranks = 2>
TRIREME_INLINE int64_t sum_few(std::span<const void* const> sources, std::span<void* const> targets, int64_t count) {
  if constexpr (ranks <= 8) {
    if (sources.size() != ranks) return sum_few<T, ranks + 1>(sources, targets, count);
    if (targets.size() == 1) return sum_few<T, ranks, 1>(sources.data(), targets.data(), count);
    if (targets.size() == ranks) return sum_few<T, ranks, ranks>(sources.data(), targets.data(), count);
  }
  return 0;
}

template <class T, ReduceOp op>
TRIREME_INLINE void combine_all(std::span<const void* const> sources, std::span<void* const> targets, int64_t count) {
  constexpr int64_t lanes = 256 / static_cast<int64_t>(sizeof(Wide<T>));
  int64_t first = 0;
  if constexpr (op == ReduceOp::sum && (std::is_floating_point_v<T> || narrow_float<T>)) {
    first = sum_few<T>(sources, targets, count);
  }
  for (; first + lanes <= count; first += lanes) combine_lanes<T, op, lanes>(sources, targets, first);
  for (; first < count; ++first) combine_lanes<T, op, 1>(sources, targets, first);
}

// A lambda would not be compiled for what the functions below are: a lambda's body is a function of its own.
struct Combine {
  std::span<const void* const> sources;
  std::span<void* const> targets;
  int64_t count;

  template <class T, ReduceOp op>
  TRIREME_INLINE void operator()() const {
    combine_all<T, op>(sources, targets, count);
  }
};

TRIREME_INLINE void reduce_any(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                               std::span<void* const> targets, int64_t count) {
  if (!visit_reduction(dtype, op, Combine{sources, targets, count}))
    fail("tensors of type {} cannot be reduced", c10::toString(dtype));
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
