// GoogLeNet, as spec/models/googlenet.cpp describes it.
#include <ATen/ATen.h>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

// The convolutions before the first inception block: one unit each, maybe behind a pooling.
class Start final : public ImageLayer {
 public:
  Start(LayerParts parts, const GoogLeNet::Start& start)
      : ImageLayer(std::move(parts)), pool_(start.pool), unit_(make(start.unit)) {}

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override {
    return unit_(max_pool(x, pool_, /*ceil=*/true), pass);
  }

 private:
  std::optional<Window> pool_;
  NormedConvolution unit_;
};

class Inception final : public ImageLayer {
 public:
  Inception(LayerParts parts, const GoogLeNet::Inception& block)
      : ImageLayer(std::move(parts)),
        pool_(block.pool),
        plain_(make(block.plain)),
        before_second_(make(block.before_second)),
        second_(make(block.second)),
        before_third_(make(block.before_third)),
        third_(make(block.third)),
        pooled_(make(block.pooled)) {}

  at::Tensor forward(const at::Tensor& input, const Pass& pass) override {
    const auto x = max_pool(input, pool_, /*ceil=*/true);
    return at::cat({plain_(x, pass), second_(before_second_(x, pass), pass), third_(before_third_(x, pass), pass),
                    pooled_(max_pool(x, GoogLeNet::branch_pool, /*ceil=*/true), pass)},
                   1);
  }

 private:
  std::optional<Window> pool_;
  NormedConvolution plain_, before_second_, second_, before_third_, third_, pooled_;
};

}  // namespace

Layers build_googlenet(const ModelParts& parts, const ModelConfig& config) {
  LayerTable described;
  const auto net = describe_googlenet(described, config);
  Layers layers;
  for (const auto& start : net.starts) layers.push_back(std::make_shared<Start>(parts[layers.size()], start));
  for (const auto& block : net.blocks) layers.push_back(std::make_shared<Inception>(parts[layers.size()], block));
  layers.push_back(std::make_shared<Classifier>(parts.back(), net.classifier));
  return layers;
}

}  // namespace trireme
