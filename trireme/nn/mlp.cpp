// A multilayer perceptron, as spec/models/mlp.cpp describes it.
// Dims: B batch, I inputs, O outputs.
#include <ATen/ATen.h>

#include "trireme/nn/functions.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Dense final : public Layer {
 public:
  // A hidden layer has a ReLU and dropout behind it.
  Dense(LayerParts parts, bool hidden, double dropout)
      : Layer(std::move(parts)),
        hidden_(hidden),
        dropout_(dropout),
        weight_(parameter(name() + ".weight")),
        bias_(parameter(name() + ".bias")) {}

  at::Tensor forward(const at::Tensor& x_BI, const Pass& pass) override {
    auto y_BO = linear(x_BI, weight_, bias_, WeightLayout::out_in);
    if (hidden_) y_BO = at::relu(y_BO);
    return hidden_ && pass.training ? dropout(y_BO, dropout_, pass.dropout.with(name()), pass.samples) : y_BO;
  }

 private:
  bool hidden_;
  double dropout_;
  ParameterPtr weight_, bias_;
};

}  // namespace

Layers build_mlp(const ModelParts& parts, const ModelConfig& config) {
  Layers layers;
  for (const auto& part : parts)
    layers.push_back(std::make_shared<Dense>(part, /*hidden=*/layers.size() + 1 < parts.size(), config.dropout));
  return layers;
}

}  // namespace trireme
