#include "trireme/nn/image_layers.h"

#include <ATen/ATen.h>

#include "trireme/nn/functions.h"

namespace trireme {

Convolution ImageLayer::make(const ConvolutionSpec& spec) const {
  return {parameter(spec.name + ".weight"), spec.bias ? parameter(spec.name + ".bias") : nullptr, spec.window};
}

BatchNorm ImageLayer::make(const NormSpec& spec) const {
  BatchNorm norm;
  norm.gain = parameter(spec.name + ".weight");
  norm.bias = parameter(spec.name + ".bias");
  norm.mean = buffer(spec.name + ".running_mean");
  norm.variance = buffer(spec.name + ".running_var");
  norm.batches = buffer(spec.name + ".num_batches_tracked");
  norm.epsilon = spec.epsilon;
  return norm;
}

Classifier::Classifier(LayerParts parts, const ClassifierSpec& spec)
    : Layer(std::move(parts)),
      classifier_(spec),
      weight_(parameter(spec.name + ".weight")),
      bias_(parameter(spec.name + ".bias")) {}

at::Tensor Classifier::forward(const at::Tensor& x, const Pass& pass) {
  const int64_t pool = classifier_.pool;
  auto x_BI = x;
  if (pool == 1) x_BI = x.mean({2, 3});
  if (pool > 1) x_BI = at::adaptive_avg_pool2d(x, {pool, pool}).flatten(1);
  const auto drop = [&](const at::Tensor& values, double probability, const char* where) {
    if (!pass.training) return values;
    return dropout(values, probability, pass.dropout.with(name() + where), pass.samples);
  };
  x_BI = drop(x_BI, classifier_.dropout_before, ".before");
  auto y_BO = linear(x_BI, weight_, bias_, WeightLayout::out_in);
  if (classifier_.relu) y_BO = at::relu(y_BO);
  return drop(y_BO, classifier_.dropout_after, ".after");
}

at::Tensor max_pool(const at::Tensor& x, const std::optional<Window>& window, bool ceil) {
  if (!window) return x;
  const auto [size, stride, padding] = *window;
  return at::max_pool2d(x, {size, size}, {stride, stride}, {padding, padding}, {1, 1}, ceil);
}

}  // namespace trireme
