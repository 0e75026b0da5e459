// Plain loops, compiled for what the processor can do: a kernel is a struct with an always inlined operator(), and
// run_widest compiles it three times and calls the best. The results are the same bits on every machine, because
// nothing in this room is compiled with contraction (a · b + c in one rounding).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

// Always inlined, so that it is compiled for whatever the function around it is compiled for.
#define TRIREME_INLINE __attribute__((always_inline)) inline

namespace trireme {

enum class Target { plain, avx2, avx512 };

// The best that this processor runs.
Target widest_target();

#if defined(__x86_64__)
#define TRIREME_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TRIREME_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512cd,f16c,bmi,bmi2,prefer-vector-width=512")))

template <class Kernel>
TRIREME_TARGET_AVX512 void run_avx512(const Kernel& kernel) {
  kernel();
}

template <class Kernel>
TRIREME_TARGET_AVX2 void run_avx2(const Kernel& kernel) {
  kernel();
}

template <class Kernel>
void run_widest(const Kernel& kernel) {
  switch (widest_target()) {
    case Target::avx512: return run_avx512(kernel);
    case Target::avx2: return run_avx2(kernel);
    case Target::plain: return kernel();
  }
}
#else
template <class Kernel>
void run_widest(const Kernel& kernel) {
  kernel();
}
#endif

// Messages may begin at any byte. (Pointers to these are declared by name: `auto` would forget the alignment.)
typedef uint16_t Unaligned16 __attribute__((aligned(1), may_alias));
typedef float UnalignedFloat __attribute__((aligned(1), may_alias));

constexpr uint32_t infinity_bits = 0x7f800000u;

TRIREME_INLINE uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }
TRIREME_INLINE float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
// Orders floats by how large they are, whatever their sign; infinities above all numbers, NaN above these.
TRIREME_INLINE int32_t magnitude(float value) { return static_cast<int32_t>(bits_of(value) & 0x7fffffffu); }
TRIREME_INLINE float finite_or_zero(float value) {
  return magnitude(value) >= static_cast<int32_t>(infinity_bits) ? 0.f : value;
}

}  // namespace trireme
