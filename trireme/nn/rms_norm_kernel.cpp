#include "trireme/nn/rms_norm_kernel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "trireme/nn/on_threads.h"
#include "trireme/nn/wide.h"

namespace trireme {

namespace {

constexpr int64_t grain = 16384;  // elements that are worth a thread
constexpr int64_t chunk = 64;     // rows whose gradients of the gain are summed in one place, however many threads

struct Places {
  const float *x, *gain, *gradients, *known_inverse;
  float *y, *inverse, *gain_gradients;
  int64_t width;
  float epsilon;
};

template <size_t bytes, class Floats = typename wide::Wide<bytes>::Floats>
__attribute__((always_inline)) inline float sum(const Floats& floats) {
  float total = 0;
  for (int64_t lane = 0; lane < wide::Wide<bytes>::lanes; ++lane) total += floats[lane];
  return total;
}

// Two sums at once hide the latency of an addition.
template <size_t bytes>
__attribute__((always_inline)) inline void value_rows(const Places& at, int64_t begin, int64_t end) {
  typename wide::Wide<bytes>::Floats a, b, gain;
  constexpr int64_t lanes = wide::Wide<bytes>::lanes;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = at.x + row * at.width;
    float* y = at.y + row * at.width;
    typename wide::Wide<bytes>::Floats first = {}, second = {};
    int64_t i = 0;
    for (; i + 2 * lanes <= at.width; i += 2 * lanes) {
      wide::load<bytes>(a, x + i, lanes);
      wide::load<bytes>(b, x + i + lanes, lanes);
      first += a * a;
      second += b * b;
    }
    for (; i < at.width; i += lanes) {
      wide::load<bytes>(a, x + i, at.width - i);
      first += a * a;
    }
    const float r = 1 / std::sqrt(sum<bytes>(first + second) / static_cast<float>(at.width) + at.epsilon);
    at.inverse[row] = r;
    for (i = 0; i < at.width; i += lanes) {
      wide::load<bytes>(a, x + i, at.width - i);
      wide::load<bytes>(gain, at.gain + i, at.width - i);
      a = a * r * gain;
      wide::store<bytes>(y + i, a, at.width - i);
    }
  }
}

// With u = g · gain: dx = r · u − x · r³ · mean(u · x), and of the gain the sum over rows of g · x · r.
template <size_t bytes>
__attribute__((always_inline)) inline void gradient_rows(const Places& at, int64_t begin, int64_t end) {
  typename wide::Wide<bytes>::Floats x, g, gain, total;
  constexpr int64_t lanes = wide::Wide<bytes>::lanes;
  float* of_gain = at.gain_gradients + begin / chunk * at.width;
  std::fill(of_gain, of_gain + at.width, 0.f);
  for (int64_t row = begin; row < end; ++row) {
    const float *xs = at.x + row * at.width, *gs = at.gradients + row * at.width;
    float* y = at.y + row * at.width;
    const float r = at.known_inverse[row];
    typename wide::Wide<bytes>::Floats dot = {};
    for (int64_t i = 0; i < at.width; i += lanes) {
      wide::load<bytes>(x, xs + i, at.width - i);
      wide::load<bytes>(g, gs + i, at.width - i);
      wide::load<bytes>(gain, at.gain + i, at.width - i);
      wide::load<bytes>(total, of_gain + i, at.width - i);
      const auto turned = g * x;
      dot += turned * gain;
      total += turned * r;
      wide::store<bytes>(of_gain + i, total, at.width - i);
    }
    const float pull = sum<bytes>(dot) * r * r * r / static_cast<float>(at.width);
    for (int64_t i = 0; i < at.width; i += lanes) {
      wide::load<bytes>(x, xs + i, at.width - i);
      wide::load<bytes>(g, gs + i, at.width - i);
      wide::load<bytes>(gain, at.gain + i, at.width - i);
      g = g * gain * r - x * pull;
      wide::store<bytes>(y + i, g, at.width - i);
    }
  }
}

using Kernel = void (*)(const Places& at, int64_t begin, int64_t end);

void values_plain(const Places& at, int64_t begin, int64_t end) { value_rows<16>(at, begin, end); }
void gradients_plain(const Places& at, int64_t begin, int64_t end) { gradient_rows<16>(at, begin, end); }
TRIREME_AVX2 void values_256(const Places& at, int64_t begin, int64_t end) { value_rows<32>(at, begin, end); }
TRIREME_AVX2 void gradients_256(const Places& at, int64_t begin, int64_t end) { gradient_rows<32>(at, begin, end); }
TRIREME_AVX512 void values_512(const Places& at, int64_t begin, int64_t end) { value_rows<64>(at, begin, end); }
TRIREME_AVX512 void gradients_512(const Places& at, int64_t begin, int64_t end) { gradient_rows<64>(at, begin, end); }
const Kernel best_values = wide::widest<Kernel>(values_plain, values_256, values_512);
const Kernel best_gradients = wide::widest<Kernel>(gradients_plain, gradients_256, gradients_512);

// Rows [0, rows) by torch's threads, in pieces that begin at whole multiples of `unit`.
void on_rows(int64_t rows, int64_t unit, int64_t width, c10::function_ref<void(int64_t begin, int64_t end)> work) {
  const auto units = at::empty({(rows + unit - 1) / unit}, at::kByte);
  on_threads(units, std::max<int64_t>(1, grain / (unit * width)), [&](int64_t begin, int64_t end) {
    for (int64_t one = begin; one < end; ++one) work(one * unit, std::min(rows, (one + 1) * unit));
  });
}

bool is_plain(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

// The type in which rows are summed.
at::ScalarType sum_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_values(const at::Tensor& x_any, const at::Tensor& gain, double epsilon) {
  const auto x = x_any.contiguous();
  const int64_t width = x.size(-1);
  if (x.is_cuda()) {
    auto [y, inverse] = at::_fused_rms_norm(x, {width}, gain, epsilon);
    return {y, inverse};
  }
  if (!is_plain(x)) {
    const auto wide = x.to(sum_type(x));
    const auto inverse = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon);
    return {(wide * inverse * gain).to(x.scalar_type()), inverse};
  }
  auto y = at::empty_like(x), inverse = at::empty({x.numel() / width}, x.options());
  Places places{.x = x.const_data_ptr<float>(), .gain = gain.const_data_ptr<float>(), .width = width};
  places.y = y.mutable_data_ptr<float>();
  places.inverse = inverse.mutable_data_ptr<float>();
  places.epsilon = static_cast<float>(epsilon);
  on_rows(x.numel() / width, 16, width, [&](int64_t begin, int64_t end) { best_values(places, begin, end); });
  return {y, inverse};
}

RmsNormGradients rms_norm_gradients(const at::Tensor& gradients, const at::Tensor& x_any, const at::Tensor& inverse,
                                    const at::Tensor& gain) {
  const auto g = gradients.contiguous(), x = x_any.contiguous();
  const int64_t width = x.size(-1), rows = x.numel() / width;
  if (x.is_cuda()) {
    auto [of_x, of_gain] = at::_fused_rms_norm_backward(g, x, {width}, inverse, gain, {true, true});
    return {of_x, of_gain};
  }
  if (!is_plain(x)) {
    const auto wide = x.to(sum_type(x)), pull = g.to(sum_type(x)), normal = wide * inverse;
    const auto through = pull * gain;
    const auto of_x = inverse * (through - normal * (through * normal).mean(-1, /*keepdim=*/true));
    return {of_x.to(x.scalar_type()), (pull * normal).reshape({rows, width}).sum(0)};
  }
  auto of_x = at::empty_like(x), partial = at::empty({(rows + chunk - 1) / chunk, width}, x.options());
  Places places{.x = x.const_data_ptr<float>(), .gain = gain.const_data_ptr<float>(), .width = width};
  places.gradients = g.const_data_ptr<float>();
  places.known_inverse = inverse.const_data_ptr<float>();
  places.y = of_x.mutable_data_ptr<float>();
  places.gain_gradients = partial.mutable_data_ptr<float>();
  on_rows(rows, chunk, width, [&](int64_t begin, int64_t end) { best_gradients(places, begin, end); });
  return {of_x, partial.sum(0)};
}

}  // namespace trireme
