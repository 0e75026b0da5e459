// ResNet as torchvision has it. Images of fewer than 64 pixels get the first layer that is usual for them: a 3x3
// convolution of stride 1, and no pooling.
#include <fmt/format.h>

#include <array>

#include "trireme/spec/models/image_models.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

ConvolutionUnit describe_unit(LayerTable& table, const std::string& convolution, const std::string& norm,
                              ImageShape& from, int64_t channels, Window window) {
  ConvolutionUnit unit;
  unit.convolution =
      describe_convolution(table, convolution, from, channels, window, ConvolutionStart::by_outputs, false);
  unit.norm = describe_norm(table, norm, from);
  return unit;
}

// The layers as nn/resnet.cpp computes them.

LayerReplay replay_stem(const ResNet& net, const ImageShape& from) {
  return [stem = net.stem, pool = net.pool, from](Replay& pass, const ReplayTensor& x) {
    return replay::max_pool(pass, replay::unit(pass, {x, from}, stem), pool).x;
  };
}

LayerReplay replay_block(const ResNet::Block& block, const ImageShape& from) {
  return [block, from](Replay& pass, const ReplayTensor& x) {
    replay::Image y{x, from};
    for (size_t i = 0; i + 1 < block.units.size(); ++i) y = replay::unit(pass, y, block.units[i]);
    const auto residual = block.shortcut ? replay::unit(pass, {x, from}, *block.shortcut, /*relu=*/false).x : x;
    return replay::unit(pass, y, block.units.back(), /*relu=*/true, residual).x;
  };
}

// `outputs`: channels that leave the block. A bottleneck has a quarter of them inside.
ResNet::Block describe_block(LayerTable& table, const std::string& name, ImageShape& shape, int64_t outputs,
                             int64_t stride, bool bottleneck) {
  const auto input = shape;
  ResNet::Block block;
  table.add_layer(name);
  const auto unit = [&](int number, int64_t channels, Window window) {
    block.units.push_back(describe_unit(table, fmt::format("{}.conv{}", name, number),
                                        fmt::format("{}.bn{}", name, number), shape, channels, window));
  };
  if (bottleneck) {
    unit(1, outputs / 4, {1, 1, 0});
    unit(2, outputs / 4, {3, stride, 1});
    unit(3, outputs, {1, 1, 0});
  } else {
    unit(1, outputs, {3, stride, 1});
    unit(2, outputs, {3, 1, 1});
  }
  if (stride > 1 || input.channels != outputs) {
    auto skipping = input;
    block.shortcut =
        describe_unit(table, name + ".downsample.0", name + ".downsample.1", skipping, outputs, {1, stride, 0});
  }
  table.layers.back().output = shape.elements();
  table.layers.back().replay = replay_block(block, input);
  return block;
}

}  // namespace

ResNet describe_resnet(LayerTable& table, const ModelConfig& config) {
  const bool bottleneck = config.kind == ModelKind::resnet50, small = config.image < small_image;
  const auto blocks = config.kind == ModelKind::resnet18 ? std::array{2, 2, 2, 2} : std::array{3, 4, 6, 3};
  ResNet net;
  ImageShape shape{config.channels, config.image};
  const auto image = shape;
  table.add_layer("conv1");
  net.stem = describe_unit(table, "conv1", "bn1", shape, 64, small ? Window{3, 1, 1} : Window{7, 2, 3});
  if (!small) {
    net.pool = Window{3, 2, 1};
    describe_pool(table, shape, *net.pool);
  }
  table.layers.back().output = shape.elements();
  table.layers.back().replay = replay_stem(net, image);
  for (int group = 0; group < 4; ++group) {
    const int64_t outputs = (int64_t{64} << group) * (bottleneck ? 4 : 1);
    for (int i = 0; i < blocks[static_cast<size_t>(group)]; ++i) {
      const int64_t stride = i == 0 && group > 0 ? 2 : 1;
      net.blocks.push_back(
          describe_block(table, fmt::format("layer{}.{}", group + 1, i), shape, outputs, stride, bottleneck));
    }
  }
  net.classifier = {.name = "fc", .pool = 1};
  const auto start = linear_start(shape.channels);
  net.classifier = describe_classifier(table, net.classifier, shape, config.classes, start, start);
  return net;
}

}  // namespace trireme
