#include "trireme/spec/models/image_models.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

void count(LayerTable& table, double flops, double depth) {
  auto& layer = table.layers.back();
  layer.forward_flops += flops;
  layer.backward_flops += 2 * flops;
  layer.depth += depth;
}

}  // namespace

int64_t Window::places(int64_t length, bool ceil) const {
  const int64_t room = length + 2 * padding - size;
  if (room < 0) return ceil && room > -stride ? 1 : 0;
  const int64_t last = ceil ? (room + stride - 1) / stride : room / stride;
  // One that would begin behind the image is left out.
  return last * stride >= length + padding ? last : last + 1;
}

ConvolutionSpec describe_convolution(LayerTable& table, const std::string& name, ImageShape& from, int64_t outputs,
                                     Window window, ConvolutionStart start, bool bias) {
  const int64_t inputs = from.channels * window.size * window.size;
  const int64_t places = window.places(from.size);
  if (places < 1) {
    refuse("model.image is too small for this model: {} would be given {} x {} pixels for its window of {}", name,
           from.size, from.size, window.size);
  }
  Initial weight = linear_start(inputs), bias_start = weight;
  if (start == ConvolutionStart::by_outputs) {
    const auto fan_out = static_cast<double>(outputs * window.size * window.size);
    weight = Initial::normal(std::sqrt(2 / fan_out));
    bias_start = Initial::zeros();
  } else if (start == ConvolutionStart::narrow) {
    weight = Initial::normal(0.01);
  }
  table.add(name + ".weight", {outputs, from.channels, window.size, window.size}, weight);
  if (bias) table.add(name + ".bias", {outputs}, bias_start);
  count(table,
        product_flops(static_cast<double>(places * places), static_cast<double>(inputs), static_cast<double>(outputs)),
        product_depth(static_cast<double>(inputs)));
  from = {outputs, places};
  return {name, outputs, window, bias};
}

NormSpec describe_norm(LayerTable& table, const std::string& name, ImageShape from, double epsilon) {
  table.add(name + ".weight", {from.channels}, Initial::ones()).wide = true;
  table.add(name + ".bias", {from.channels}, Initial::zeros()).wide = true;
  auto& buffers = table.layers.back().buffers;
  buffers.push_back({name + ".running_mean", {from.channels}});
  buffers.push_back({name + ".running_var", {from.channels}, /*start=*/1});
  buffers.push_back({name + ".num_batches_tracked", {}, 0, /*counts=*/true});
  // Two sums over the pixels, then a scale and a shift.
  const auto pixels = static_cast<double>(from.size * from.size);
  count(table, 7 * static_cast<double>(from.elements()), 2 * product_depth(pixels) + 3);
  return {name, epsilon};
}

void describe_pool(LayerTable& table, ImageShape& from, Window window, bool ceil) {
  from.size = window.places(from.size, ceil);
  const auto compared = static_cast<double>(from.elements() * window.size * window.size);
  count(table, compared, std::ceil(2 * std::log2(static_cast<double>(window.size))));
}

ClassifierSpec describe_classifier(LayerTable& table, ClassifierSpec spec, ImageShape from, int64_t outputs,
                                   Initial weight, Initial bias) {
  const int64_t inputs = spec.pool > 0 ? from.channels * spec.pool * spec.pool : from.elements();
  auto& layer = table.add_layer(spec.name);
  table.add(spec.name + ".weight", {outputs, inputs}, weight);
  table.add(spec.name + ".bias", {outputs}, bias);
  const double averaged = spec.pool > 0 ? static_cast<double>(from.elements()) : 0;
  layer.forward_flops = product_flops(1, static_cast<double>(inputs), static_cast<double>(outputs)) + averaged;
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = product_depth(static_cast<double>(inputs)) + (averaged > 0 ? product_depth(averaged) : 0);
  layer.output = outputs;
  spec.linear = {.inputs = inputs, .outputs = outputs, .weight = 0, .bias = 1};
  layer.replay = [spec, from](Replay& pass, const ReplayTensor& x) { return replay::classify(pass, {x, from}, spec); };
  return spec;
}

}  // namespace trireme
