// SwiGLU, silu(gate) · up with silu(x) = x / (1 + exp(−x)), and its gradients, in one pass over memory each.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace trireme {

at::Tensor swiglu_values(const at::Tensor& gate, const at::Tensor& up);
// Of the gate and of `up`.
std::pair<at::Tensor, at::Tensor> swiglu_gradients(const at::Tensor& gradients, const at::Tensor& gate,
                                                   const at::Tensor& up);

// The CUDA kernels behind them, on contiguous tensors. They refuse in a build without CUDA.
void swiglu_values_cuda(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& y);
void swiglu_gradients_cuda(const at::Tensor& gradients, const at::Tensor& gate, const at::Tensor& up,
                           const at::Tensor& gate_gradients, const at::Tensor& up_gradients);

}  // namespace trireme
