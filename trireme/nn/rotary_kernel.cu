#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <type_traits>

#include "trireme/nn/rotary_kernel.h"

namespace trireme {

namespace {

// A thread turns one point: D/2 neighbouring threads share a head, and read memory in order.
template <class T, class Math>
__global__ void rotate_kernel(const T* x, T* y, const Math* cosines, const Math* sines, const int64_t* positions,
                              int64_t first, int64_t tokens, int64_t heads, int64_t half, int64_t points, Math sign) {
  const int64_t point = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (point >= points) return;
  const int64_t i = point % half, head = point / half, row = head / heads;
  const int64_t angle = (positions ? positions[row] : first + row % tokens) * half + i;
  const Math c = cosines[angle], s = sign * sines[angle];
  const int64_t place = head * 2 * half + i;
  const Math a = x[place], b = x[place + half];
  y[place] = static_cast<T>(a * c - b * s);
  y[place + half] = static_cast<T>(b * c + a * s);
}

}  // namespace

void rotate_cuda(const at::Tensor& x_BTHD, const at::Tensor& y_BTHD, const Rotations& rotations, int64_t first,
                 const at::Tensor& positions_BT, bool back) {
  const int64_t points = x_BTHD.numel() / 2;
  if (points == 0) return;
  const c10::cuda::CUDAGuard guard(x_BTHD.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto blocks = static_cast<unsigned>((points + 255) / 256);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x_BTHD.scalar_type(), "rotate", [&] {
    using Math = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    rotate_kernel<scalar_t, Math><<<blocks, 256, 0, stream>>>(
        x_BTHD.data_ptr<scalar_t>(), y_BTHD.data_ptr<scalar_t>(), rotations.cosines.data_ptr<Math>(),
        rotations.sines.data_ptr<Math>(), positions_BT.defined() ? positions_BT.data_ptr<int64_t>() : nullptr, first,
        x_BTHD.size(1), x_BTHD.size(2), x_BTHD.size(3) / 2, points, static_cast<Math>(back ? -1 : 1));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace trireme
