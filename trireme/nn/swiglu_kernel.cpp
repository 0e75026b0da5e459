#include "trireme/nn/swiglu_kernel.h"

#include <ATen/ATen.h>

#include "trireme/nn/on_threads.h"
#include "trireme/nn/wide.h"

namespace trireme {

namespace {

constexpr int64_t grain = 16384;  // elements that are worth a thread

struct Places {
  const float *gate, *up, *gradients;
  float *y, *gate_gradients, *up_gradients;
};

template <size_t bytes>
__attribute__((always_inline)) inline void value_loop(const Places& at, int64_t begin, int64_t end) {
  typename wide::Wide<bytes>::Floats gate, up, e, y;
  for (int64_t i = begin; i < end; i += wide::Wide<bytes>::lanes) {
    wide::load<bytes>(gate, at.gate + i, end - i);
    wide::load<bytes>(up, at.up + i, end - i);
    e = -gate;
    wide::exponential<bytes>(e);
    y = gate / (1.f + e) * up;
    wide::store<bytes>(at.y + i, y, end - i);
  }
}

template <size_t bytes>
__attribute__((always_inline)) inline void gradient_loop(const Places& at, int64_t begin, int64_t end) {
  typename wide::Wide<bytes>::Floats gate, up, g, e, s, of_gate, of_up;
  for (int64_t i = begin; i < end; i += wide::Wide<bytes>::lanes) {
    wide::load<bytes>(gate, at.gate + i, end - i);
    wide::load<bytes>(up, at.up + i, end - i);
    wide::load<bytes>(g, at.gradients + i, end - i);
    e = -gate;
    wide::exponential<bytes>(e);
    s = 1.f / (1.f + e);
    of_up = g * gate * s;
    of_gate = g * up * s * (1.f + gate * (1.f - s));
    wide::store<bytes>(at.gate_gradients + i, of_gate, end - i);
    wide::store<bytes>(at.up_gradients + i, of_up, end - i);
  }
}

using Kernel = void (*)(const Places& at, int64_t begin, int64_t end);

void values_plain(const Places& at, int64_t begin, int64_t end) { value_loop<16>(at, begin, end); }
void gradients_plain(const Places& at, int64_t begin, int64_t end) { gradient_loop<16>(at, begin, end); }
TRIREME_AVX2 void values_256(const Places& at, int64_t begin, int64_t end) { value_loop<32>(at, begin, end); }
TRIREME_AVX2 void gradients_256(const Places& at, int64_t begin, int64_t end) { gradient_loop<32>(at, begin, end); }
TRIREME_AVX512 void values_512(const Places& at, int64_t begin, int64_t end) { value_loop<64>(at, begin, end); }
TRIREME_AVX512 void gradients_512(const Places& at, int64_t begin, int64_t end) { gradient_loop<64>(at, begin, end); }
const Kernel best_values = wide::widest<Kernel>(values_plain, values_256, values_512);
const Kernel best_gradients = wide::widest<Kernel>(gradients_plain, gradients_256, gradients_512);

bool is_plain(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

}  // namespace

at::Tensor swiglu_values(const at::Tensor& gate_any, const at::Tensor& up_any) {
  const auto gate = gate_any.contiguous(), up = up_any.contiguous();
  if (gate.is_cuda()) {
    auto y = at::empty_like(gate);
    swiglu_values_cuda(gate, up, y);
    return y;
  }
  if (!is_plain(gate)) return at::silu(gate) * up;
  auto y = at::empty_like(gate);
  const Places places{
      gate.const_data_ptr<float>(), up.const_data_ptr<float>(), nullptr, y.mutable_data_ptr<float>(), nullptr, nullptr};
  on_threads(y, grain, [&](int64_t begin, int64_t end) { best_values(places, begin, end); });
  return y;
}

std::pair<at::Tensor, at::Tensor> swiglu_gradients(const at::Tensor& gradients, const at::Tensor& gate_any,
                                                   const at::Tensor& up_any) {
  const auto g = gradients.contiguous(), gate = gate_any.contiguous(), up = up_any.contiguous();
  if (!gate.is_cuda() && !is_plain(gate)) return {at::silu_backward(g * up, gate), g * at::silu(gate)};
  auto of_gate = at::empty_like(gate), of_up = at::empty_like(gate);
  if (gate.is_cuda()) {
    swiglu_gradients_cuda(g, gate, up, of_gate, of_up);
    return {of_gate, of_up};
  }
  const Places places{gate.const_data_ptr<float>(),      up.const_data_ptr<float>(),
                      g.const_data_ptr<float>(),         nullptr,
                      of_gate.mutable_data_ptr<float>(), of_up.mutable_data_ptr<float>()};
  on_threads(of_gate, grain, [&](int64_t begin, int64_t end) { best_gradients(places, begin, end); });
  return {of_gate, of_up};
}

}  // namespace trireme
