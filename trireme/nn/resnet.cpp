// ResNet-18, -34 and -50, as spec/models/resnet.cpp describes them.
#include <ATen/ATen.h>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Stem final : public ImageLayer {
 public:
  Stem(LayerParts parts, const ResNet& net) : ImageLayer(std::move(parts)), unit_(make(net.stem)), pool_(net.pool) {}

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override { return max_pool(unit_(x, pass), pool_); }

 private:
  NormedConvolution unit_;
  std::optional<Window> pool_;
};

class Block final : public ImageLayer {
 public:
  Block(LayerParts parts, const ResNet::Block& block) : ImageLayer(std::move(parts)) {
    for (const auto& unit : block.units) units_.push_back(make(unit));
    if (block.shortcut) shortcut_ = make(*block.shortcut);
  }

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override {
    auto y = x;
    for (size_t i = 0; i + 1 < units_.size(); ++i) y = units_[i](y, pass);
    const auto residual = shortcut_ ? (*shortcut_)(x, pass, /*relu=*/false) : x;
    return units_.back()(y, pass, /*relu=*/true, residual);
  }

 private:
  std::vector<NormedConvolution> units_;
  std::optional<NormedConvolution> shortcut_;
};

}  // namespace

Layers build_resnet(const ModelParts& parts, const ModelConfig& config) {
  LayerTable described;
  const auto net = describe_resnet(described, config);
  Layers layers{std::make_shared<Stem>(parts.front(), net)};
  for (const auto& block : net.blocks) layers.push_back(std::make_shared<Block>(parts[layers.size()], block));
  layers.push_back(std::make_shared<Classifier>(parts.back(), net.classifier));
  return layers;
}

}  // namespace trireme
