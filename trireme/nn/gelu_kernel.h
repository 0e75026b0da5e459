// GELU in its tanh form, x/2 · (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), written as x / (1 + exp(−2u)): one
// exponential an element instead of torch's tanh, which on the CPU costs as much as a tenth of a block's products.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

// Contiguous fp32 tensors of the host; elsewhere and in other types torch's own.
at::Tensor gelu_values(const at::Tensor& x);
at::Tensor gelu_gradients(const at::Tensor& gradients, const at::Tensor& x);

}  // namespace trireme
