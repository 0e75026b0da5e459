#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/nn/swiglu_kernel.h"

namespace trireme {

namespace {

// Elements that a thread takes at once: 16 bytes, one load.
template <class T>
struct alignas(16) Pack {
  T values[16 / sizeof(T)];
};

template <class Math>
__device__ Math sigmoid(Math x) {
  return 1 / (1 + ::exp(-x));
}
template <>
__device__ float sigmoid<float>(float x) {
  return __fdividef(1.f, 1.f + __expf(-x));
}

template <class T>
__global__ void values_kernel(const T* gate, const T* up, T* y, int64_t count) {
  using Math = at::opmath_type<T>;
  constexpr int width = 16 / sizeof(T);
  const int64_t first = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  const auto value = [](T a, T b) {
    const Math x = a;
    return static_cast<T>(x * sigmoid<Math>(x) * static_cast<Math>(b));
  };
  if (first + width <= count) {
    const auto a = *reinterpret_cast<const Pack<T>*>(gate + first), b = *reinterpret_cast<const Pack<T>*>(up + first);
    Pack<T> out;
    for (int i = 0; i < width; ++i) out.values[i] = value(a.values[i], b.values[i]);
    *reinterpret_cast<Pack<T>*>(y + first) = out;
  } else {
    for (int64_t i = first; i < count; ++i) y[i] = value(gate[i], up[i]);
  }
}

template <class T>
__global__ void gradients_kernel(const T* gradients, const T* gate, const T* up, T* of_gate, T* of_up, int64_t count) {
  using Math = at::opmath_type<T>;
  constexpr int width = 16 / sizeof(T);
  const int64_t first = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  const auto both = [](T g_any, T gate_any, T up_any, T& for_gate, T& for_up) {
    const Math g = g_any, x = gate_any, s = sigmoid<Math>(x);
    for_up = static_cast<T>(g * x * s);
    for_gate = static_cast<T>(g * static_cast<Math>(up_any) * s * (1 + x * (1 - s)));
  };
  if (first + width <= count) {
    const auto g = *reinterpret_cast<const Pack<T>*>(gradients + first);
    const auto a = *reinterpret_cast<const Pack<T>*>(gate + first), b = *reinterpret_cast<const Pack<T>*>(up + first);
    Pack<T> da, db;
    for (int i = 0; i < width; ++i) both(g.values[i], a.values[i], b.values[i], da.values[i], db.values[i]);
    *reinterpret_cast<Pack<T>*>(of_gate + first) = da;
    *reinterpret_cast<Pack<T>*>(of_up + first) = db;
  } else {
    for (int64_t i = first; i < count; ++i) both(gradients[i], gate[i], up[i], of_gate[i], of_up[i]);
  }
}

// Blocks of 256 threads that take 16 bytes each.
unsigned blocks_for(const at::Tensor& x) {
  const int64_t threads = (x.numel() * x.element_size() + 15) / 16;
  return static_cast<unsigned>((threads + 255) / 256);
}

}  // namespace

void swiglu_values_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& y) {
  if (gate.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(gate.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gate.scalar_type(), "swiglu", [&] {
    values_kernel<scalar_t><<<blocks_for(gate), 256, 0, stream>>>(gate.data_ptr<scalar_t>(), up.data_ptr<scalar_t>(),
                                                                  y.data_ptr<scalar_t>(), gate.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void swiglu_gradients_cuda(const at::Tensor& gradients, const at::Tensor& gate, const at::Tensor& up,
                           const at::Tensor& gate_gradients, const at::Tensor& up_gradients) {
  if (gate.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(gate.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gate.scalar_type(), "swiglu", [&] {
    gradients_kernel<scalar_t><<<blocks_for(gate), 256, 0, stream>>>(
        gradients.data_ptr<scalar_t>(), gate.data_ptr<scalar_t>(), up.data_ptr<scalar_t>(),
        gate_gradients.data_ptr<scalar_t>(), up_gradients.data_ptr<scalar_t>(), gate.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace trireme
