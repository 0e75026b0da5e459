#include "trireme/nn/image_layers.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/functions.h"

namespace trireme {

LayerSpec ImageLayer::spec() const {
  auto spec = counts_;
  for (const auto& parameter : parameters_) spec.parameters += parameter->value.numel();
  spec.output = shape_.elements();
  return spec;
}

void ImageLayer::count(double flops, double depth, int64_t activations) {
  counts_.forward_flops += flops;
  counts_.backward_flops += 2 * flops;
  counts_.depth += depth;
  counts_.activations += activations;
}

Convolution ImageLayer::add_convolution(const std::string& name, ImageShape& from, int64_t outputs, Window window,
                                        Start start, bool with_bias) {
  const int64_t inputs = from.channels * window.size * window.size;
  const int64_t places = window.places(from.size);
  if (places < 1) {
    refuse("model.image is too small for this model: {} would be given {} x {} pixels for its window of {}", name,
           from.size, from.size, window.size);
  }
  const double uniform = 1 / std::sqrt(static_cast<double>(inputs));
  Initial weight = Initial::uniform(uniform), bias = weight;
  if (start == Start::by_outputs) {
    const auto fan_out = static_cast<double>(outputs * window.size * window.size);
    weight = Initial::normal(std::sqrt(2 / fan_out));
    bias = Initial::zeros();
  } else if (start == Start::narrow) {
    weight = Initial::normal(0.01);
  }
  Convolution made{add(name + ".weight", {outputs, from.channels, window.size, window.size}, weight),
                   with_bias ? add(name + ".bias", {outputs}, bias) : nullptr, window};
  count(product_flops(static_cast<double>(places * places), static_cast<double>(inputs), static_cast<double>(outputs)),
        product_depth(static_cast<double>(inputs)), from.elements());
  from = {outputs, places};
  return made;
}

BatchNorm ImageLayer::add_norm(const std::string& name, ImageShape from, double epsilon) {
  const auto zeros = at::zeros({from.channels}, at::kDouble);
  BatchNorm norm;
  norm.gain = add(name + ".weight", {from.channels}, Initial::ones());
  norm.bias = add(name + ".bias", {from.channels}, Initial::zeros());
  norm.gain->wide = norm.bias->wide = true;
  norm.mean = remember(name + ".running_mean", zeros);
  norm.variance = remember(name + ".running_var", at::ones_like(zeros));
  norm.batches = remember(name + ".num_batches_tracked", at::zeros({}, at::kLong));
  norm.epsilon = epsilon;
  // Two sums over the pixels, then a scale and a shift.
  const auto pixels = static_cast<double>(from.size * from.size);
  count(7 * static_cast<double>(from.elements()), 2 * product_depth(pixels) + 3, from.elements());
  return norm;
}

void ImageLayer::count_pool(ImageShape& from, Window window, bool ceil) {
  const int64_t before = from.elements();
  from.size = window.places(from.size, ceil);
  const auto compared = static_cast<double>(from.elements() * window.size * window.size);
  count(compared, std::ceil(2 * std::log2(static_cast<double>(window.size))), before + 2 * from.elements());
}

Classifier::Classifier(std::string name, ImageShape input, int64_t outputs, ClassifierOptions options)
    : Layer(std::move(name)),
      inputs_(options.pool > 0 ? input.channels * options.pool * options.pool : input.elements()),
      outputs_(outputs),
      input_elements_(input.elements()),
      options_(options) {
  weight_ = add(name_ + ".weight", {outputs, inputs_}, options.weight);
  bias_ = add(name_ + ".bias", {outputs}, options.bias);
}

at::Tensor Classifier::forward(const at::Tensor& x, const Pass& pass) {
  auto x_BI = x;
  if (options_.pool == 1) x_BI = x.mean({2, 3});
  if (options_.pool > 1) x_BI = at::adaptive_avg_pool2d(x, {options_.pool, options_.pool}).flatten(1);
  const auto drop = [&](const at::Tensor& values, double probability, const char* where) {
    if (!pass.training) return values;
    return dropout(values, probability, pass.dropout.with(name_ + where), pass.samples);
  };
  x_BI = drop(x_BI, options_.dropout_before, ".before");
  auto y_BO = linear(x_BI, weight_, bias_, WeightLayout::out_in);
  if (options_.relu) y_BO = at::relu(y_BO);
  return drop(y_BO, options_.dropout_after, ".after");
}

LayerSpec Classifier::spec() const {
  LayerSpec spec;
  spec.name = name_;
  const double averaged = options_.pool > 0 ? static_cast<double>(input_elements_) : 0;
  spec.forward_flops = product_flops(1, static_cast<double>(inputs_), static_cast<double>(outputs_)) + averaged;
  spec.backward_flops = 2 * spec.forward_flops;
  spec.depth = product_depth(static_cast<double>(inputs_)) + (averaged > 0 ? product_depth(averaged) : 0);
  spec.parameters = inputs_ * outputs_ + outputs_;
  spec.activations = inputs_ + (options_.relu ? outputs_ : 0);
  spec.output = outputs_;
  return spec;
}

Initial linear_start(int64_t inputs) { return Initial::uniform(1 / std::sqrt(static_cast<double>(inputs))); }

at::Tensor max_pool(const at::Tensor& x, Window window, bool ceil) {
  return at::max_pool2d(x, {window.size, window.size}, {window.stride, window.stride}, {window.padding, window.padding},
                        {1, 1}, ceil);
}

}  // namespace trireme
