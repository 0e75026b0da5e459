// VGG, AlexNet and the small chain of convolutions, as spec/models/chain.cpp describes them.
#include <ATen/ATen.h>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Feature final : public ImageLayer {
 public:
  Feature(LayerParts parts, const Chain::Feature& feature)
      : ImageLayer(std::move(parts)), convolution_(make(feature.convolution)), pool_(feature.pool) {}

  at::Tensor forward(const at::Tensor& x, const Pass&) override {
    auto y = convolution_(x);
    at::relu_(y);
    return max_pool(y, pool_);
  }

 private:
  Convolution convolution_;
  std::optional<Window> pool_;
};

}  // namespace

Layers build_chain(const ModelParts& parts, const ModelConfig& config) {
  LayerTable described;
  const auto chain = describe_chain(described, config);
  Layers layers;
  for (const auto& feature : chain.features) layers.push_back(std::make_shared<Feature>(parts[layers.size()], feature));
  for (const auto& linear : chain.classifiers)
    layers.push_back(std::make_shared<Classifier>(parts[layers.size()], linear));
  return layers;
}

}  // namespace trireme
