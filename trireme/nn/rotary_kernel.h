// Rotary positions in Hugging Face's convention: the first half of a head's values and the second are the two
// coordinates of D/2 points, and point i of a token at position p is turned by the angle p / theta^(2i/D).
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

// Cosines and sines of all angles, [positions, D/2] each; fp64 for fp64 values and fp32 for all others.
struct Rotations {
  at::Tensor cosines, sines;
};
Rotations make_rotations(int64_t positions, int64_t head_width, double theta, const at::TensorOptions& like);

// x [B, T, H, D], turned, or turned back when `back`. The token t of a sample has position first + t, or what
// `positions_BT` (int64) says where it is defined.
at::Tensor rotate(const at::Tensor& x_BTHD, const Rotations& rotations, int64_t first, const at::Tensor& positions_BT,
                  bool back);

// The CUDA kernel behind it, on contiguous tensors. Refuses in a build without CUDA.
void rotate_cuda(const at::Tensor& x_BTHD, const at::Tensor& y_BTHD, const Rotations& rotations, int64_t first,
                 const at::Tensor& positions_BT, bool back);

}  // namespace trireme
