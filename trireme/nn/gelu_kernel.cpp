#include "trireme/nn/gelu_kernel.h"

#include <ATen/ATen.h>

#include <bit>
#include <cstring>

#include "trireme/nn/on_threads.h"

namespace trireme {

namespace {

constexpr float scale = 1.5957691216057308f;  // 2 √(2/π)
constexpr float cubic = 0.044715f;
constexpr int64_t grain = 16384;  // elements that are worth a thread

// As many floats as a register of the machine holds.
template <size_t bytes>
struct Wide {
  typedef float Floats __attribute__((vector_size(bytes)));
  typedef uint32_t Bits __attribute__((vector_size(bytes)));
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

// One step of the loop: from x (and the gradient g) to y.
struct Value {
  template <size_t bytes, class Floats>
  __attribute__((always_inline)) static void step(const Floats& x, const Floats&, Floats& y) {
    Floats e = -scale * (x + cubic * x * x * x);
    exponential<bytes>(e);
    y = x / (1.f + e);
  }
};

struct Gradient {
  template <size_t bytes, class Floats>
  __attribute__((always_inline)) static void step(const Floats& x, const Floats& g, Floats& y) {
    const Floats square = x * x;
    Floats e = -scale * (x + cubic * x * square);
    exponential<bytes>(e);
    const Floats s = 1.f / (1.f + e);
    y = g * (s + x * s * (1.f - s) * scale * (1.f + 3.f * cubic * square));
  }
};

template <class Function, size_t bytes>
__attribute__((always_inline)) inline void loop(const float* x, const float* g, float* y, int64_t count) {
  typename Wide<bytes>::Floats v = {}, by = {}, result;
  constexpr int64_t lanes = bytes / sizeof(float);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    std::memcpy(&v, x + i, sizeof v);
    if (g) std::memcpy(&by, g + i, sizeof v);
    Function::template step<bytes>(v, by, result);
    std::memcpy(y + i, &result, sizeof v);
  }
  const auto rest = static_cast<size_t>(count - i) * sizeof(float);
  if (rest == 0) return;
  std::memcpy(&v, x + i, rest);
  if (g) std::memcpy(&by, g + i, rest);
  Function::template step<bytes>(v, by, result);
  std::memcpy(y + i, &result, rest);
}

using Kernel = void (*)(const float* x, const float* g, float* y, int64_t count);

void values_plain(const float* x, const float* g, float* y, int64_t n) { loop<Value, 16>(x, g, y, n); }
void gradients_plain(const float* x, const float* g, float* y, int64_t n) { loop<Gradient, 16>(x, g, y, n); }

#if defined(__x86_64__)
#define TRIREME_AVX2 __attribute__((target("avx2,fma")))
#define TRIREME_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
TRIREME_AVX2 void values_256(const float* x, const float* g, float* y, int64_t n) { loop<Value, 32>(x, g, y, n); }
TRIREME_AVX2 void gradients_256(const float* x, const float* g, float* y, int64_t n) { loop<Gradient, 32>(x, g, y, n); }
TRIREME_AVX512 void values_512(const float* x, const float* g, float* y, int64_t n) { loop<Value, 64>(x, g, y, n); }
TRIREME_AVX512 void gradients_512(const float* x, const float* g, float* y, int64_t n) {
  loop<Gradient, 64>(x, g, y, n);
}

// The widest of the three that this processor runs.
Kernel widest(Kernel plain, Kernel wide, Kernel widest) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return widest;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? wide : plain;
}
const Kernel best_values = widest(values_plain, values_256, values_512);
const Kernel best_gradients = widest(gradients_plain, gradients_256, gradients_512);
#else
const Kernel best_values = values_plain;
const Kernel best_gradients = gradients_plain;
#endif

at::Tensor run(Kernel kernel, const at::Tensor& x, const at::Tensor& g) {
  auto y = at::empty_like(x);
  const auto* from = x.const_data_ptr<float>();
  const auto* by = g.defined() ? g.const_data_ptr<float>() : nullptr;
  auto* to = y.mutable_data_ptr<float>();
  on_threads(y, grain, [&](int64_t begin, int64_t end) {
    kernel(from + begin, by ? by + begin : nullptr, to + begin, end - begin);
  });
  return y;
}

bool ours(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous(); }

}  // namespace

at::Tensor gelu_values(const at::Tensor& x) { return ours(x) ? run(best_values, x, {}) : at::gelu(x, "tanh"); }

at::Tensor gelu_gradients(const at::Tensor& gradients, const at::Tensor& x) {
  return ours(x) ? run(best_gradients, x, gradients.contiguous()) : at::gelu_backward(gradients, x, "tanh");
}

}  // namespace trireme
