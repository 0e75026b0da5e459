// Loops over floats by the widest registers that the processor has: what the kernels of the host share. A kernel is
// written once for `bytes` of a register and compiled for three widths; `widest` chooses when the program starts.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace trireme::wide {

// As many floats as a register of the machine holds.
template <size_t bytes>
struct Wide {
  typedef float Floats __attribute__((vector_size(bytes)));
  typedef uint32_t Bits __attribute__((vector_size(bytes)));
  static constexpr int64_t lanes = bytes / sizeof(float);
};

// exp to the last bit or two: 2^k times a polynomial in what is left, k read from the bits of a float that is too large
// to hold a fraction.
template <size_t bytes, class Floats = typename Wide<bytes>::Floats, class Bits = typename Wide<bytes>::Bits>
__attribute__((always_inline)) inline void exponential(Floats& x) {
  constexpr float whole = 12582912.f;  // 1.5 · 2^23
  x = x < -87.f ? Floats{} - 87.f : x;
  x = x > 89.f ? Floats{} + 89.f : x;  // whose power is infinite
  const Floats shifted = x * 1.44269504f + whole;
  const Floats k = shifted - whole;
  const Floats r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.f);
  const Bits power = ((Bits)shifted - std::bit_cast<uint32_t>(whole) + 127u) << 23;
  x = p * (Floats)power;
}

// The first `count` floats at `from`, and zeros behind them.
template <size_t bytes, class Floats = typename Wide<bytes>::Floats>
__attribute__((always_inline)) inline void load(Floats& floats, const float* from, int64_t count) {
  if (count >= Wide<bytes>::lanes) {
    std::memcpy(&floats, from, bytes);
  } else {
    floats = Floats{};
    std::memcpy(&floats, from, static_cast<size_t>(count) * sizeof(float));
  }
}

template <size_t bytes, class Floats = typename Wide<bytes>::Floats>
__attribute__((always_inline)) inline void store(float* to, const Floats& floats, int64_t count) {
  if (count >= Wide<bytes>::lanes) {
    std::memcpy(to, &floats, bytes);
  } else {
    std::memcpy(to, &floats, static_cast<size_t>(count) * sizeof(float));
  }
}

#if defined(__x86_64__)
#define TRIREME_AVX2 __attribute__((target("avx2,fma")))
#define TRIREME_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))

// The widest of the three that this processor runs.
template <class Kernel>
Kernel widest(Kernel plain, Kernel wide, Kernel widest) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return widest;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? wide : plain;
}
#else
#define TRIREME_AVX2
#define TRIREME_AVX512

template <class Kernel>
Kernel widest(Kernel plain, Kernel, Kernel) {
  return plain;
}
#endif

}  // namespace trireme::wide
