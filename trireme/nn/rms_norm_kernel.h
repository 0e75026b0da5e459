// RMSNorm over the last dim, y = x · r · gain with r = 1 / √(mean x² + ε), and its gradients. On the host one pass
// forward and one backward instead of torch's five and ten; on a card torch's own fused kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace trireme {

// y, and r of each row, fp32 (fp64 for fp64 values).
std::pair<at::Tensor, at::Tensor> rms_norm_values(const at::Tensor& x, const at::Tensor& gain, double epsilon);

struct RmsNormGradients {
  at::Tensor x, gain;
};
RmsNormGradients rms_norm_gradients(const at::Tensor& gradients, const at::Tensor& x, const at::Tensor& inverse,
                                    const at::Tensor& gain);

}  // namespace trireme
