// The differentiable operations of image models that touch parameters; BatchNorm has files of its own (batch_norm.h).
// Images are [B, C, H, W] and lie in memory with their channels last, on every device: cards' and oneDNN's kernels read
// them so without reordering.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/nn/parameter.h"
#include "trireme/spec/models/image_models.h"

namespace trireme {

// weight [O, I, size, size]; `bias` may be null.
at::Tensor convolution(const at::Tensor& x_BCHW, const ParameterPtr& weight, const ParameterPtr& bias, Window window);

}  // namespace trireme
