// The image models: torchvision's names and counts, and that each can be cut between any two layers.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "tests/close.h"
#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {
namespace {

struct Published {
  const char* name;
  ModelKind kind;
  int64_t parameters;
  size_t layers;
  double gflops;  // multiplications and additions of a forward pass at 224 x 224
};

const std::vector<Published> published{
    {"resnet18", ModelKind::resnet18, 11'689'512, 10, 3.63}, {"resnet34", ModelKind::resnet34, 21'797'672, 18, 7.33},
    {"resnet50", ModelKind::resnet50, 25'557'032, 18, 8.18}, {"vgg11", ModelKind::vgg11, 132'863'336, 11, 15.2},
    {"vgg16", ModelKind::vgg16, 138'357'544, 16, 30.9},      {"alexnet", ModelKind::alexnet, 61'100'840, 8, 1.43},
    {"googlenet", ModelKind::googlenet, 6'624'904, 13, 3.0}, {"cnn", ModelKind::cnn, 12'979'272, 4, 0.189},
};

class ImageModel : public testing::TestWithParam<Published> {};

// Memory that nobody writes to is never there: the large models cost nothing to build.
TEST_P(ImageModel, HasThePublishedParametersAndWork) {
  const auto& expected = GetParam();
  const auto model = build_model({.kind = expected.kind, .classes = 1000, .image = 224}, 0);
  const auto table = model->table(4);
  EXPECT_EQ(table.parameters(), expected.parameters);
  EXPECT_EQ(model->layers.size(), expected.layers);
  double flops = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < table.layers.size(); ++i) {
    const auto& layer = table.layers[i];
    flops += layer.forward_flops;
    EXPECT_GT(layer.depth, 0) << layer.name;
    EXPECT_GT(table.kept_bytes(i), 0) << layer.name;
    EXPECT_TRUE(names.insert(layer.name).second) << layer.name;
  }
  EXPECT_NEAR(flops / 1e9, expected.gflops, 0.05 * expected.gflops);
  for (const auto& parameter : model->parameters()) {
    EXPECT_EQ(parameter->decays(), parameter->value.dim() > 1) << parameter->name;
    EXPECT_TRUE(names.insert(parameter->name).second) << parameter->name;
  }
}

// Layer by layer, in evaluation and in training, on images of every size that is spoken of.
TEST_P(ImageModel, TakesSmallImages) {
  c10::NoGradGuard no_grad;
  for (const int64_t size : {16, 28, 64}) {
    if (size == 64 && GetParam().parameters > 50'000'000) continue;  // much memory, nothing new
    const int64_t channels = size == 28 ? 1 : 3;
    const auto model =
        build_model({.kind = GetParam().kind, .dropout = 0.2, .classes = 5, .image = size, .channels = channels}, 0);
    model->to(at::kFloat, at::kCPU);
    for (const auto& parameter : model->parameters()) parameter->value.fill_(0.01);
    for (const bool training : {false, true}) {
      SCOPED_TRACE(fmt::format("{} pixels, training {}", size, training));
      Pass pass;
      pass.training = training;
      pass.samples = at::arange(2);
      auto x = numbers({2, channels, size, size}, 1, at::kFloat);
      for (const auto& layer : model->layers) {
        x = layer->forward(x, pass);
        EXPECT_EQ(x.numel(), 2 * layer->spec().output) << layer->name();
        // Four dims stay with the channels last from the first layer on.
        EXPECT_TRUE(x.dim() != 4 || x.is_contiguous(at::MemoryFormat::ChannelsLast)) << layer->name();
      }
      EXPECT_EQ(x.sizes(), at::IntArrayRef({2, 5}));
      EXPECT_TRUE(at::isfinite(x).all().item<bool>());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ImageModel, testing::ValuesIn(published),
                         [](const auto& info) { return std::string(info.param.name); });

std::map<std::string, std::vector<int64_t>> shapes_of(ModelKind kind, int64_t image) {
  const auto model = build_model({.kind = kind, .classes = 1000, .image = image}, 0);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& parameter : model->parameters()) shapes[parameter->name] = parameter->value.sizes().vec();
  for (const auto& buffer : model->buffers()) shapes[buffer->name] = buffer->value.sizes().vec();
  return shapes;
}

using Shape = std::vector<int64_t>;

TEST(ImageModels, NamesAndShapesAreThoseOfTorchvisionsFiles) {
  auto resnet = shapes_of(ModelKind::resnet18, 224);
  EXPECT_EQ(resnet.size(), 122u);  // entries of torchvision's state_dict
  EXPECT_EQ(resnet.at("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(resnet.at("bn1.running_var"), Shape{64});
  EXPECT_EQ(resnet.at("layer1.0.conv1.weight"), (Shape{64, 64, 3, 3}));
  EXPECT_EQ(resnet.at("layer2.0.downsample.0.weight"), (Shape{128, 64, 1, 1}));
  EXPECT_EQ(resnet.at("layer2.0.downsample.1.num_batches_tracked"), Shape{});
  EXPECT_EQ(resnet.at("fc.weight"), (Shape{1000, 512}));
  auto bottleneck = shapes_of(ModelKind::resnet50, 224);
  EXPECT_EQ(bottleneck.size(), 320u);
  EXPECT_EQ(bottleneck.at("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(bottleneck.at("layer4.2.conv3.weight"), (Shape{2048, 512, 1, 1}));
  auto vgg = shapes_of(ModelKind::vgg16, 224);
  EXPECT_EQ(vgg.size(), 32u);
  EXPECT_EQ(vgg.at("features.28.weight"), (Shape{512, 512, 3, 3}));
  EXPECT_EQ(vgg.at("classifier.0.weight"), (Shape{4096, 25088}));
  EXPECT_EQ(vgg.at("classifier.6.bias"), Shape{1000});
  EXPECT_EQ(shapes_of(ModelKind::vgg11, 224).at("features.18.weight"), (Shape{512, 512, 3, 3}));
  auto alexnet = shapes_of(ModelKind::alexnet, 224);
  EXPECT_EQ(alexnet.size(), 16u);
  EXPECT_EQ(alexnet.at("features.0.weight"), (Shape{64, 3, 11, 11}));
  EXPECT_EQ(alexnet.at("features.10.weight"), (Shape{256, 256, 3, 3}));
  EXPECT_EQ(alexnet.at("classifier.1.weight"), (Shape{4096, 9216}));
  EXPECT_EQ(alexnet.at("classifier.4.weight"), (Shape{4096, 4096}));
  auto googlenet = shapes_of(ModelKind::googlenet, 224);
  EXPECT_EQ(googlenet.size(), 344u);
  EXPECT_EQ(googlenet.at("conv2.conv.weight"), (Shape{64, 64, 1, 1}));
  EXPECT_EQ(googlenet.at("inception3a.branch3.1.conv.weight"), (Shape{32, 16, 3, 3}));
  EXPECT_EQ(googlenet.at("inception4e.branch4.1.bn.running_mean"), Shape{128});
  // The first layers for small images.
  EXPECT_EQ(shapes_of(ModelKind::resnet18, 32).at("conv1.weight"), (Shape{64, 3, 3, 3}));
  EXPECT_EQ(shapes_of(ModelKind::vgg11, 32).at("classifier.0.weight"), (Shape{512, 512}));
}

TEST(ImageModels, StartAsTorchvisionsDo) {
  const auto model = build_model({.kind = ModelKind::resnet18, .image = 32}, 0);
  model->initialize(1);
  for (const auto& parameter : model->parameters()) {
    const auto& value = parameter->value;
    if (parameter->name == "layer3.0.conv1.weight") {
      EXPECT_NEAR(value.std().item<double>(), std::sqrt(2.0 / (256 * 9)), 2e-4);
    } else if (parameter->name == "layer1.0.bn1.weight") {
      EXPECT_TRUE(at::all(value == 1).item<bool>());
    } else if (parameter->name == "fc.weight") {
      EXPECT_NEAR(value.abs().max().item<double>(), 1 / std::sqrt(512.0), 1e-3);
    }
  }
  // What a parameter starts as depends on its place, not on how it lies in memory.
  const auto again = build_model({.kind = ModelKind::resnet18, .image = 32}, 0);
  again->layers[1]->parameters()[0]->value = at::empty({64, 64, 3, 3}, at::kDouble);
  again->initialize(1);
  EXPECT_TRUE(at::equal(again->layers[1]->parameters()[0]->value, model->layers[1]->parameters()[0]->value));
}

TEST(ImageModels, KeepStatisticsWide) {
  const auto model = build_model({.kind = ModelKind::resnet18, .image = 32}, 0);
  model->initialize(1);
  model->to(at::kBFloat16, at::kCPU);
  for (const auto& buffer : model->buffers())
    EXPECT_EQ(buffer->value.scalar_type(), buffer->value.dim() == 0 ? at::kLong : at::kFloat) << buffer->name;
  for (const auto& parameter : model->parameters()) {
    const bool norm = parameter->wide;
    EXPECT_EQ(parameter->value.scalar_type(), norm ? at::kFloat : at::kBFloat16) << parameter->name;
  }
}

}  // namespace
}  // namespace trireme
