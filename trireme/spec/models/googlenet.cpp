// GoogLeNet as torchvision has it. Images of fewer than 64 pixels begin with a 3x3 convolution of stride 1 and no
// pooling behind it; a pooling that would leave nothing is left out.
#include <fmt/format.h>

#include "trireme/spec/models/image_models.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

constexpr double epsilon = 1e-3;

struct Widths {
  int64_t plain, before_second, second, before_third, third, pooled;
};

// The layers as nn/googlenet.cpp computes them.

LayerReplay replay_start(const GoogLeNet::Start& start, const ImageShape& from) {
  return [start, from](Replay& pass, const ReplayTensor& x) {
    return replay::unit(pass, replay::max_pool(pass, {x, from}, start.pool, /*ceil=*/true), start.unit).x;
  };
}

LayerReplay replay_inception(const GoogLeNet::Inception& block, const ImageShape& from) {
  return [block, from](Replay& pass, const ReplayTensor& input) {
    const auto unit = [&](const replay::Image& image, const ConvolutionUnit& spec) {
      return replay::unit(pass, image, spec);
    };
    const auto x = replay::max_pool(pass, {input, from}, block.pool, /*ceil=*/true);
    return replay::concatenate(pass, {unit(x, block.plain), unit(unit(x, block.before_second), block.second),
                                      unit(unit(x, block.before_third), block.third),
                                      unit(replay::max_pool(pass, x, GoogLeNet::branch_pool, true), block.pooled)})
        .x;
  };
}

class GoogLeNetDescriber {
 public:
  GoogLeNetDescriber(LayerTable& table, const ModelConfig& config)
      : table_(table), shape_{config.channels, config.image} {}

  void start(const std::string& name, int64_t outputs, Window window, std::optional<Window> pool) {
    table_.add_layer(name);
    const auto from = shape_;
    GoogLeNet::Start start;
    start.pool = describe_front_pool(pool);
    start.unit = unit(name, shape_, outputs, window);
    table_.layers.back().output = shape_.elements();
    table_.layers.back().replay = replay_start(start, from);
    net.starts.push_back(start);
  }

  void inception(const std::string& name, const Widths& widths, std::optional<Window> pool = std::nullopt) {
    constexpr Window one{1, 1, 0}, three{3, 1, 1};
    table_.add_layer(name);
    const auto from = shape_;
    GoogLeNet::Inception block;
    block.pool = describe_front_pool(pool);
    auto first = shape_, second = shape_, third = shape_, fourth = shape_;
    block.plain = unit(name + ".branch1", first, widths.plain, one);
    block.before_second = unit(name + ".branch2.0", second, widths.before_second, one);
    block.second = unit(name + ".branch2.1", second, widths.second, three);
    block.before_third = unit(name + ".branch3.0", third, widths.before_third, one);
    block.third = unit(name + ".branch3.1", third, widths.third, three);
    describe_pool(table_, fourth, GoogLeNet::branch_pool);
    block.pooled = unit(name + ".branch4.1", fourth, widths.pooled, one);
    shape_.channels = widths.plain + widths.second + widths.third + widths.pooled;
    table_.layers.back().output = shape_.elements();
    table_.layers.back().replay = replay_inception(block, from);
    net.blocks.push_back(block);
  }

  void classifier(const ClassifierSpec& spec, int64_t outputs) {
    net.classifier =
        describe_classifier(table_, spec, shape_, outputs, Initial::normal(0.01), linear_start(shape_.channels));
  }

  GoogLeNet net;

 private:
  ConvolutionUnit unit(const std::string& name, ImageShape& from, int64_t outputs, Window window) {
    ConvolutionUnit made;
    made.convolution =
        describe_convolution(table_, name + ".conv", from, outputs, window, ConvolutionStart::narrow, false);
    made.norm = describe_norm(table_, name + ".bn", from, epsilon);
    return made;
  }

  std::optional<Window> describe_front_pool(std::optional<Window> window) {
    if (window && window->places(shape_.size, true) < 1) window.reset();
    if (window) describe_pool(table_, shape_, *window, true);
    return window;
  }

  LayerTable& table_;
  ImageShape shape_;
};

}  // namespace

GoogLeNet describe_googlenet(LayerTable& table, const ModelConfig& config) {
  GoogLeNetDescriber made(table, config);
  const bool small = config.image < small_image;
  const Window three{3, 2, 0}, two{2, 2, 0};
  const auto first_pool = small ? std::nullopt : std::optional(three);
  made.start("conv1", 64, small ? Window{3, 1, 1} : Window{7, 2, 3}, std::nullopt);
  made.start("conv2", 64, {1, 1, 0}, first_pool);
  made.start("conv3", 192, {3, 1, 1}, std::nullopt);
  made.inception("inception3a", {64, 96, 128, 16, 32, 32}, three);
  made.inception("inception3b", {128, 128, 192, 32, 96, 64});
  made.inception("inception4a", {192, 96, 208, 16, 48, 64}, three);
  made.inception("inception4b", {160, 112, 224, 24, 64, 64});
  made.inception("inception4c", {128, 128, 256, 24, 64, 64});
  made.inception("inception4d", {112, 144, 288, 32, 64, 64});
  made.inception("inception4e", {256, 160, 320, 32, 128, 128});
  made.inception("inception5a", {256, 160, 320, 32, 128, 128}, two);
  made.inception("inception5b", {384, 192, 384, 48, 128, 128});
  made.classifier({.name = "fc", .pool = 1, .dropout_before = config.dropout}, config.classes);
  return made.net;
}

}  // namespace trireme
