// A multilayer perceptron: `layers` hidden layers with ReLU, then a linear layer to the classes.
#include <fmt/format.h>

#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

// A hidden layer has a ReLU and dropout behind it.
void describe_dense(LayerTable& table, const std::string& name, int64_t inputs, int64_t outputs, bool hidden,
                    double dropout) {
  auto& layer = table.add_layer(name);
  table.add(name + ".weight", {outputs, inputs}, linear_start(inputs));
  table.add(name + ".bias", {outputs}, linear_start(inputs));
  layer.forward_flops = product_flops(1, static_cast<double>(inputs), static_cast<double>(outputs));
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = product_depth(static_cast<double>(inputs));
  layer.output = outputs;
  const ProjectionSpec matrix{.inputs = inputs, .outputs = outputs, .weight = 0, .bias = 1};
  layer.replay = [matrix, hidden, dropout](Replay& pass, const ReplayTensor& x) {
    auto y = replay::linear(pass, x, matrix);
    if (hidden) y = replay::relu(pass, y);
    return hidden ? replay::dropout(pass, y, dropout) : y;
  };
}

}  // namespace

void describe_mlp(LayerTable& table, const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i)
    describe_dense(table, fmt::format("layers.{}", i), i == 0 ? config.inputs : config.width, config.width,
                   /*hidden=*/true, config.dropout);
  describe_dense(table, "head", config.width, config.classes, /*hidden=*/false, 0);
}

}  // namespace trireme
