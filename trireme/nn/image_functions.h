// The differentiable operations of image models that touch parameters; BatchNorm has files of its own (batch_norm.h).
// Images are [B, C, H, W] and lie in memory with their channels last, on every device: cards' and oneDNN's kernels read
// them so without reordering.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/nn/parameter.h"

namespace trireme {

// A square window that moves over an image.
struct Window {
  int64_t size = 1, stride = 1, padding = 0;

  // How many places it takes along `length` pixels; `ceil`: also one that hangs over the end.
  int64_t places(int64_t length, bool ceil = false) const;
};

// weight [O, I, size, size]; `bias` may be null.
at::Tensor convolution(const at::Tensor& x_BCHW, const ParameterPtr& weight, const ParameterPtr& bias, Window window);

}  // namespace trireme
