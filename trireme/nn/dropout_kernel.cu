#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/nn/dropout_kernel.h"

namespace trireme {

namespace {

template <class T>
__global__ void drop_kernel(const T* x, T* y, const uint64_t* keys, int64_t elements, uint32_t threshold,
                            double scale) {
  const Key key{keys[blockIdx.y]};
  const int64_t base = blockIdx.y * elements;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < elements; i += int64_t{gridDim.x} * blockDim.x) {
    const T factor = static_cast<T>(bits32(key, static_cast<uint32_t>(i)) >= threshold ? scale : 0.0);
    y[base + i] = x[base + i] * factor;
  }
}

}  // namespace

void drop_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& keys, uint32_t threshold, double scale) {
  const int64_t samples = x.size(0);
  if (x.numel() == 0) return;
  const int64_t elements = x.numel() / samples;
  c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((elements + 255) / 256, 1024)),
                  static_cast<unsigned>(samples));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "drop", [&] {
    drop_kernel<scalar_t><<<grid, 256, 0, stream>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(),
                                                    reinterpret_cast<const uint64_t*>(keys.data_ptr<int64_t>()),
                                                    elements, threshold, scale);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace trireme
