#include "trireme/nn/projection.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

at::Tensor with_adapter(const at::Tensor& y, const at::Tensor& x, const Projection& projection) {
  if (!projection.lora_a) return y;
  const auto inner = linear(x, projection.lora_a, nullptr, WeightLayout::out_in);
  return at::add(y, linear(inner, projection.lora_b, nullptr, WeightLayout::out_in), projection.lora_scale);
}

}  // namespace

at::Tensor project(const at::Tensor& x, const Projection& projection) {
  return with_adapter(linear(x, projection.weight, projection.bias, projection.layout), x, projection);
}

std::vector<at::Tensor> project(const at::Tensor& x, const std::vector<const Projection*>& projections) {
  ParameterList weights;
  for (const auto* projection : projections) weights.push_back(projection->weight);
  auto results = linears(x, weights);
  for (size_t i = 0; i < results.size(); ++i) results[i] = with_adapter(results[i], x, *projections[i]);
  return results;
}

}  // namespace trireme
