// A matrix that a block multiplies with, and what fine-tuning puts beside it: a low-rank adapter (LoRA, Hu et al.
// 2021), y = x W + b + (alpha / rank) · (x Aᵀ) Bᵀ with A [rank, in] random and B [out, rank] zero at first.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "trireme/nn/functions.h"
#include "trireme/nn/parameter.h"

namespace trireme {

struct Projection {
  ParameterPtr weight, bias;    // no bias: null
  ParameterPtr lora_a, lora_b;  // no adapter: null
  WeightLayout layout = WeightLayout::out_in;
  double lora_scale = 0;
};

at::Tensor project(const at::Tensor& x, const Projection& projection);
// Several without biases, of layout out_in, that read the same input.
std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<const Projection*>& projections);

}  // namespace trireme
