// Parameters and leaves for the tests of differentiable functions.
#pragma once

#include <ATen/ATen.h>

#include <limits>
#include <memory>

#include "trireme/nn/parameter.h"

namespace trireme {

constexpr double exact = 1e-13;  // what fp64 sums in another order may differ by

// A parameter whose slot starts as garbage, so that a test sees whether a fresh write overwrites.
struct Watched {
  ParameterPtr parameter = std::make_shared<Parameter>();
  int writes = 0;

  explicit Watched(const at::Tensor& value, at::ScalarType gradient_type = at::kDouble) {
    parameter->value = value.detach().clone().set_requires_grad(true);
    parameter->gradient.view = at::full(value.sizes(), std::numeric_limits<double>::quiet_NaN(), gradient_type);
    parameter->gradient.arrived = [this] { ++writes; };
  }
  Watched(const Watched&) = delete;

  const at::Tensor& gradient() const { return parameter->gradient.view; }
};

inline at::Tensor leaf(const at::Tensor& value) { return value.detach().clone().set_requires_grad(true); }

}  // namespace trireme
