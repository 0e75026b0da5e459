// What the differentiable functions share: how parameters travel from a forward pass to its backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "trireme/nn/parameter.h"

namespace trireme {

// Parameters handed through autograd's context.
struct ParameterHolder : torch::CustomClassHolder {
  explicit ParameterHolder(ParameterList held) : parameters(std::move(held)) {}
  ParameterList parameters;
};

inline void keep(torch::autograd::AutogradContext* context, ParameterList parameters) {
  context->saved_data["parameters"] =
      c10::IValue::make_capsule(c10::make_intrusive<ParameterHolder>(std::move(parameters)));
}

inline const ParameterList& kept(torch::autograd::AutogradContext* context) {
  return static_cast<ParameterHolder*>(context->saved_data["parameters"].toCapsule().get())->parameters;
}

inline at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace trireme
