// A multilayer perceptron: `layers` hidden layers with ReLU, then a linear layer to the classes.
// Dims: B batch, I inputs, O outputs.
#include <ATen/ATen.h>

#include <cmath>

#include "trireme/nn/functions.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Dense final : public Layer {
 public:
  Dense(const std::string& name, int64_t inputs, int64_t outputs, bool relu, double dropout)
      : Layer(name), inputs_(inputs), outputs_(outputs), relu_(relu), dropout_(dropout) {
    const auto initial = Initial::uniform(1 / std::sqrt(static_cast<double>(inputs)));  // as torch's Linear
    weight_ = add(name + ".weight", {outputs, inputs}, initial);
    bias_ = add(name + ".bias", {outputs}, initial);
  }

  at::Tensor forward(const at::Tensor& x_BI, const Pass& pass) override {
    auto y_BO = linear(x_BI, weight_, bias_, WeightLayout::out_in);
    if (relu_) y_BO = at::relu(y_BO);
    return relu_ && pass.training ? dropout(y_BO, dropout_, pass.dropout.with(name_), pass.samples) : y_BO;
  }

  LayerSpec spec() const override {
    LayerSpec spec;
    spec.name = name_;
    spec.forward_flops = product_flops(1, static_cast<double>(inputs_), static_cast<double>(outputs_));
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth = product_depth(static_cast<double>(inputs_));
    spec.parameters = inputs_ * outputs_ + outputs_;
    spec.activations = inputs_ + (relu_ ? outputs_ : 0);
    spec.output = outputs_;
    return spec;
  }

 private:
  int64_t inputs_, outputs_;
  bool relu_;
  double dropout_;
  ParameterPtr weight_, bias_;
};

}  // namespace

std::unique_ptr<Model> build_mlp(const ModelConfig& config) {
  auto model = std::make_unique<Model>();
  for (int64_t i = 0; i < config.layers; ++i) {
    model->layers.push_back(std::make_unique<Dense>(fmt::format("layers.{}", i), i == 0 ? config.inputs : config.width,
                                                    config.width, true, config.dropout));
  }
  model->layers.push_back(std::make_unique<Dense>("head", config.width, config.classes, false, 0));
  return model;
}

}  // namespace trireme
