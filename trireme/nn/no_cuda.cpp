// Takes the place of the kernels of CUDA (*.cu) where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/nn/dropout_kernel.h"
#include "trireme/nn/rotary_kernel.h"
#include "trireme/nn/swiglu_kernel.h"

namespace trireme {

void drop_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, uint32_t, double) {
  fail("this build has no CUDA");
}

void rotate_cuda(const at::Tensor&, const at::Tensor&, const Rotations&, int64_t, const at::Tensor&, bool) {
  fail("this build has no CUDA");
}

void swiglu_values_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&) { fail("this build has no CUDA"); }

void swiglu_gradients_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&) {
  fail("this build has no CUDA");
}

}  // namespace trireme
