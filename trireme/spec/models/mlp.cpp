// A multilayer perceptron: `layers` hidden layers with ReLU, then a linear layer to the classes.
#include <fmt/format.h>

#include "trireme/spec/models/models.h"

namespace trireme {

namespace {

void describe_dense(LayerTable& table, const std::string& name, int64_t inputs, int64_t outputs) {
  auto& layer = table.add_layer(name);
  table.add(name + ".weight", {outputs, inputs}, linear_start(inputs));
  table.add(name + ".bias", {outputs}, linear_start(inputs));
  layer.forward_flops = product_flops(1, static_cast<double>(inputs), static_cast<double>(outputs));
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = product_depth(static_cast<double>(inputs));
  layer.activations = inputs;  // what the ReLU keeps of its output is the next layer's input
  layer.output = outputs;
}

}  // namespace

void describe_mlp(LayerTable& table, const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i)
    describe_dense(table, fmt::format("layers.{}", i), i == 0 ? config.inputs : config.width, config.width);
  describe_dense(table, "head", config.width, config.classes);
}

}  // namespace trireme
