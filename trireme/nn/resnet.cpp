// ResNet-18, -34 (two 3x3 convolutions a block) and -50 (1x1, 3x3 with the stride, 1x1), as torchvision has them. Each
// block is a layer. Images of fewer than 64 pixels get the first layer that is usual for them: a 3x3 convolution of
// stride 1, and no pooling.
#include <ATen/ATen.h>

#include <array>
#include <optional>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Stem final : public ImageLayer {
 public:
  explicit Stem(const ModelConfig& config)
      : ImageLayer("conv1", {config.channels, config.image}), pools_(config.image >= small_image) {
    const auto window = pools_ ? Window{7, 2, 3} : Window{3, 1, 1};
    convolution_ = add_convolution("conv1", shape_, 64, window, Start::by_outputs, false);
    norm_ = add_norm("bn1", shape_);
    if (pools_) count_pool(shape_, pool_);
  }

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override {
    const auto y = batch_norm(convolution_(x), norm_, pass, /*relu=*/true);
    return pools_ ? max_pool(y, pool_) : y;
  }

 private:
  static constexpr Window pool_{3, 2, 1};
  bool pools_;
  Convolution convolution_;
  BatchNorm norm_;
};

class Block final : public ImageLayer {
 public:
  // `outputs`: channels that leave the block. A bottleneck has a quarter of them inside.
  Block(const std::string& name, ImageShape input, int64_t outputs, int64_t stride, bool bottleneck)
      : ImageLayer(name, input) {
    const auto unit = [&](int number, int64_t channels, Window window) {
      const auto convolution =
          add_convolution(fmt::format("{}.conv{}", name, number), shape_, channels, window, Start::by_outputs, false);
      units_.push_back({convolution, add_norm(fmt::format("{}.bn{}", name, number), shape_)});
    };
    if (bottleneck) {
      unit(1, outputs / 4, {1, 1, 0});
      unit(2, outputs / 4, {3, stride, 1});
      unit(3, outputs, {1, 1, 0});
    } else {
      unit(1, outputs, {3, stride, 1});
      unit(2, outputs, {3, 1, 1});
    }
    if (stride == 1 && input.channels == outputs) return;
    count_once(input, 2);
    const auto convolution =
        add_convolution(name + ".downsample.0", input, outputs, {1, stride, 0}, Start::by_outputs, false);
    shortcut_ = Unit{convolution, add_norm(name + ".downsample.1", input)};
  }

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override {
    auto y = x;
    for (size_t i = 0; i + 1 < units_.size(); ++i)
      y = batch_norm(units_[i].convolution(y), units_[i].norm, pass, /*relu=*/true);
    const auto residual = shortcut_ ? batch_norm(shortcut_->convolution(x), shortcut_->norm, pass, false) : x;
    return batch_norm(units_.back().convolution(y), units_.back().norm, pass, /*relu=*/true, residual);
  }

 private:
  struct Unit {
    Convolution convolution;
    BatchNorm norm;
  };
  std::vector<Unit> units_;
  std::optional<Unit> shortcut_;
};

}  // namespace

std::unique_ptr<Model> build_resnet(const ModelConfig& config) {
  const bool bottleneck = config.kind == ModelKind::resnet50;
  const auto blocks = config.kind == ModelKind::resnet18 ? std::array{2, 2, 2, 2} : std::array{3, 4, 6, 3};
  auto model = std::make_unique<Model>();
  auto stem = std::make_unique<Stem>(config);
  auto shape = stem->output();
  model->layers.push_back(std::move(stem));
  for (int group = 0; group < 4; ++group) {
    const int64_t outputs = (int64_t{64} << group) * (bottleneck ? 4 : 1);
    for (int i = 0; i < blocks[static_cast<size_t>(group)]; ++i) {
      const int64_t stride = i == 0 && group > 0 ? 2 : 1;
      auto block = std::make_unique<Block>(fmt::format("layer{}.{}", group + 1, i), shape, outputs, stride, bottleneck);
      shape = block->output();
      model->layers.push_back(std::move(block));
    }
  }
  ClassifierOptions head{.pool = 1, .weight = linear_start(shape.channels), .bias = linear_start(shape.channels)};
  model->layers.push_back(std::make_unique<Classifier>("fc", shape, config.classes, head));
  return model;
}

}  // namespace trireme
