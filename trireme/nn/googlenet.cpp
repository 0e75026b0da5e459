// GoogLeNet as torchvision has it: with BatchNorm, without the auxiliary classifiers. Each inception block, with the
// pooling before it, is a layer. Images of fewer than 64 pixels begin with a 3x3 convolution of stride 1 and no pooling
// behind it.
#include <ATen/ATen.h>

#include <optional>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

constexpr double epsilon = 1e-3;

// Convolution, BatchNorm, ReLU.
struct Unit {
  Convolution convolution;
  BatchNorm norm;

  at::Tensor operator()(const at::Tensor& x, const Pass& pass) const {
    return batch_norm(convolution(x), norm, pass, /*relu=*/true);
  }
};

// Pooling in front of a layer's own work; one that would leave nothing is left out.
struct Pool {
  std::optional<Window> window;

  at::Tensor operator()(const at::Tensor& x) const { return window ? max_pool(x, *window, /*ceil=*/true) : x; }
};

class UnitLayer : public ImageLayer {
 protected:
  using ImageLayer::ImageLayer;

  Unit add_unit(const std::string& name, ImageShape& from, int64_t outputs, Window window) {
    const auto convolution = add_convolution(name + ".conv", from, outputs, window, Start::narrow, false);
    return {convolution, add_norm(name + ".bn", from, epsilon)};
  }

  Pool add_pool(ImageShape& from, std::optional<Window> window) {
    if (window && window->places(from.size, true) < 1) window.reset();
    if (window) count_pool(from, *window, true);
    return {window};
  }
};

// The convolutions before the first inception block: one unit each, maybe behind a pooling.
class Start final : public UnitLayer {
 public:
  Start(const std::string& name, ImageShape input, int64_t outputs, Window window, std::optional<Window> pool)
      : UnitLayer(name, input), pool_(add_pool(shape_, pool)), unit_(add_unit(name, shape_, outputs, window)) {}

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override { return unit_(pool_(x), pass); }

 private:
  Pool pool_;
  Unit unit_;
};

struct Widths {
  int64_t plain, before_second, second, before_third, third, pooled;
};

// Four branches beside each other: 1x1; 1x1, 3x3; 1x1, 3x3 (5x5 in the paper); pooling, 1x1.
class Inception final : public UnitLayer {
 public:
  Inception(const std::string& name, ImageShape input, const Widths& widths, std::optional<Window> pool)
      : UnitLayer(name, input), pool_(add_pool(shape_, pool)) {
    const auto branch = [&](const std::string& unit, ImageShape& from, int64_t outputs, Window window) {
      return add_unit(name + unit, from, outputs, window);
    };
    ImageShape first = shape_, second = shape_, third = shape_, fourth = shape_;
    plain_ = branch(".branch1", first, widths.plain, one);
    before_second_ = branch(".branch2.0", second, widths.before_second, one);
    second_ = branch(".branch2.1", second, widths.second, three);
    before_third_ = branch(".branch3.0", third, widths.before_third, one);
    third_ = branch(".branch3.1", third, widths.third, three);
    count_pool(fourth, three);
    pooled_ = branch(".branch4.1", fourth, widths.pooled, one);
    count_once(shape_, 4);
    shape_.channels = widths.plain + widths.second + widths.third + widths.pooled;
  }

  at::Tensor forward(const at::Tensor& input, const Pass& pass) override {
    const auto x = pool_(input);
    return at::cat({plain_(x, pass), second_(before_second_(x, pass), pass), third_(before_third_(x, pass), pass),
                    pooled_(max_pool(x, three, true), pass)},
                   1);
  }

 private:
  static constexpr Window one{1, 1, 0}, three{3, 1, 1};
  Pool pool_;
  Unit plain_, before_second_, second_, before_third_, third_, pooled_;
};

}  // namespace

std::unique_ptr<Model> build_googlenet(const ModelConfig& config) {
  auto model = std::make_unique<Model>();
  ImageShape shape{config.channels, config.image};
  const auto append = [&](auto layer) {
    shape = layer->output();
    model->layers.push_back(std::move(layer));
  };
  const bool small = config.image < small_image;
  const Window three{3, 2, 0}, two{2, 2, 0};
  const auto first_pool = small ? std::nullopt : std::optional(three);
  append(std::make_unique<Start>("conv1", shape, 64, small ? Window{3, 1, 1} : Window{7, 2, 3}, std::nullopt));
  append(std::make_unique<Start>("conv2", shape, 64, Window{1, 1, 0}, first_pool));
  append(std::make_unique<Start>("conv3", shape, 192, Window{3, 1, 1}, std::nullopt));
  const auto inception = [&](const char* name, Widths widths, std::optional<Window> pool = std::nullopt) {
    append(std::make_unique<Inception>(fmt::format("inception{}", name), shape, widths, pool));
  };
  inception("3a", {64, 96, 128, 16, 32, 32}, three);
  inception("3b", {128, 128, 192, 32, 96, 64});
  inception("4a", {192, 96, 208, 16, 48, 64}, three);
  inception("4b", {160, 112, 224, 24, 64, 64});
  inception("4c", {128, 128, 256, 24, 64, 64});
  inception("4d", {112, 144, 288, 32, 64, 64});
  inception("4e", {256, 160, 320, 32, 128, 128});
  inception("5a", {256, 160, 320, 32, 128, 128}, two);
  inception("5b", {384, 192, 384, 48, 128, 128});
  ClassifierOptions head{.pool = 1,
                         .dropout_before = config.dropout,
                         .weight = Initial::normal(0.01),
                         .bias = linear_start(shape.channels)};
  model->layers.push_back(std::make_unique<Classifier>("fc", shape, config.classes, head));
  return model;
}

}  // namespace trireme
