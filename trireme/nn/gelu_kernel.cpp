#include "trireme/nn/gelu_kernel.h"

#include <ATen/ATen.h>

#include "trireme/nn/on_threads.h"
#include "trireme/nn/wide.h"

namespace trireme {

namespace {

using wide::exponential;

constexpr float scale = 1.5957691216057308f;  // 2 √(2/π)
constexpr float cubic = 0.044715f;
constexpr int64_t grain = 16384;  // elements that are worth a thread

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
  typename wide::Wide<bytes>::Floats v = {}, by = {}, result;
  for (int64_t i = 0; i < count; i += wide::Wide<bytes>::lanes) {
    wide::load<bytes>(v, x + i, count - i);
    if (g) wide::load<bytes>(by, g + i, count - i);
    Function::template step<bytes>(v, by, result);
    wide::store<bytes>(y + i, result, count - i);
  }
}

using Kernel = void (*)(const float* x, const float* g, float* y, int64_t count);

void values_plain(const float* x, const float* g, float* y, int64_t n) { loop<Value, 16>(x, g, y, n); }
void gradients_plain(const float* x, const float* g, float* y, int64_t n) { loop<Gradient, 16>(x, g, y, n); }

TRIREME_AVX2 void values_256(const float* x, const float* g, float* y, int64_t n) { loop<Value, 32>(x, g, y, n); }
TRIREME_AVX2 void gradients_256(const float* x, const float* g, float* y, int64_t n) { loop<Gradient, 32>(x, g, y, n); }
TRIREME_AVX512 void values_512(const float* x, const float* g, float* y, int64_t n) { loop<Value, 64>(x, g, y, n); }
TRIREME_AVX512 void gradients_512(const float* x, const float* g, float* y, int64_t n) {
  loop<Gradient, 64>(x, g, y, n);
}
const Kernel best_values = wide::widest<Kernel>(values_plain, values_256, values_512);
const Kernel best_gradients = wide::widest<Kernel>(gradients_plain, gradients_256, gradients_512);

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
