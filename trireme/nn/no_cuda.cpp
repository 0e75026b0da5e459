// Takes the place of the kernels of CUDA (*.cu) where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/nn/batch_norm_kernel.h"
#include "trireme/nn/dropout_kernel.h"
#include "trireme/nn/rotary_kernel.h"
#include "trireme/nn/swiglu_kernel.h"

namespace trireme {

at::Tensor channel_moments_cuda(const at::Tensor&) { fail("this build has no CUDA"); }

at::Tensor scale_channels_cuda(const at::Tensor&, const ChannelScale&, bool, const at::Tensor&) {
  fail("this build has no CUDA");
}

at::Tensor gradient_sums_cuda(PassedGradient&, const at::Tensor&, const ChannelScale&) {
  fail("this build has no CUDA");
}

at::Tensor input_gradient_cuda(const PassedGradient&, const at::Tensor&, const ChannelScale&, const at::Tensor&,
                               const at::Tensor&) {
  fail("this build has no CUDA");
}

ChannelScale channel_scale_cuda(const at::Tensor&, const NormTensors&) { fail("this build has no CUDA"); }

GradientTerms gradient_terms_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const ChannelScale&) {
  fail("this build has no CUDA");
}

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
