// Models that are one chain of convolutions and a classifier of a few linear layers: VGG-11 and -16 (without BatchNorm)
// and AlexNet, as torchvision has them, and a small one for trying things out (two convolutions of 16 and 32 channels,
// each with a pooling, and 128 hidden units).
// Images of fewer than 64 pixels: AlexNet begins with a 3x3 convolution of stride 2, and its pooling pads by 1; a
// pooling of VGG that would leave nothing is left out; what comes out is averaged to one pixel, and the hidden layers
// of the classifier are 512 wide.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/spec/models/image_models.h"
#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

// A convolution of the chain.
struct Link {
  int64_t outputs;
  Window window;
  std::optional<Window> pool;
};

std::vector<Link> vgg_links(ModelKind kind) {
  const std::vector<int> repeats = kind == ModelKind::vgg11 ? std::vector{1, 1, 2, 2, 2} : std::vector{2, 2, 3, 3, 3};
  std::vector<Link> links;
  for (size_t group = 0; group < repeats.size(); ++group) {
    for (int i = 0; i < repeats[group]; ++i) links.push_back({std::min<int64_t>(64 << group, 512), {3, 1, 1}, {}});
    links.back().pool = Window{2, 2, 0};
  }
  return links;
}

std::vector<Link> alexnet_links(bool small) {
  const Window pool{3, 2, small ? 1 : 0};
  return {{64, small ? Window{3, 2, 1} : Window{11, 4, 2}, pool},
          {192, {5, 1, 2}, pool},
          {384, {3, 1, 1}, {}},
          {256, {3, 1, 1}, {}},
          {256, {3, 1, 1}, pool}};
}

std::vector<Link> cnn_links() {
  const Window window{3, 1, 1}, pool{2, 2, 0};
  return {{16, window, pool}, {32, window, pool}};
}

// As nn/chain.cpp computes it.
LayerReplay replay_feature(const Chain::Feature& feature, const ImageShape& from) {
  return [feature, from](Replay& pass, const ReplayTensor& x) {
    auto y = replay::convolution(pass, {x, from}, feature.convolution);
    y.x = replay::relu_in_place(pass, y.x);
    return replay::max_pool(pass, y, feature.pool).x;
  };
}

class ChainDescriber {
 public:
  ChainDescriber(LayerTable& table, const ModelConfig& config)
      : table_(table), shape_{config.channels, config.image} {}

  void features(const std::vector<Link>& links, ConvolutionStart start) {
    int64_t place = 0;  // in torchvision's list, which counts ReLUs and poolings too
    for (const auto& link : links) {
      const auto name = fmt::format("features.{}", place);
      table_.add_layer(name);
      const auto from = shape_;
      Chain::Feature feature;
      feature.convolution = describe_convolution(table_, name, shape_, link.outputs, link.window, start, true);
      if (link.pool && link.pool->places(shape_.size) >= 1) {
        feature.pool = link.pool;
        describe_pool(table_, shape_, *feature.pool);
      }
      table_.layers.back().output = shape_.elements();
      table_.layers.back().replay = replay_feature(feature, from);
      chain_.features.push_back(feature);
      place += link.pool ? 3 : 2;
    }
  }

  void classifier(const ClassifierSpec& spec, int64_t outputs, Initial weight, Initial bias) {
    chain_.classifiers.push_back(describe_classifier(table_, spec, shape_, outputs, weight, bias));
    shape_ = {outputs, 1};
  }

  const ImageShape& shape() const { return shape_; }
  Chain& chain() { return chain_; }

 private:
  LayerTable& table_;
  ImageShape shape_;
  Chain chain_;
};

}  // namespace

Chain describe_chain(LayerTable& table, const ModelConfig& config) {
  ChainDescriber chain(table, config);
  const bool small = config.image < small_image;
  const int64_t hidden = small ? 512 : 4096, classes = config.classes;
  const double dropout = config.dropout;
  if (config.kind == ModelKind::cnn) {
    constexpr int64_t inner = 128;
    chain.features(cnn_links(), ConvolutionStart::by_inputs);
    const auto start = linear_start(chain.shape().elements());
    chain.classifier({.name = "classifier.0", .pool = chain.shape().size, .dropout_after = dropout, .relu = true},
                     inner, start, start);
    chain.classifier({.name = "classifier.2"}, classes, linear_start(inner), linear_start(inner));
  } else if (config.kind == ModelKind::alexnet) {
    const int64_t pool = small ? 1 : 6;
    chain.features(alexnet_links(small), ConvolutionStart::by_inputs);
    const auto start = linear_start(chain.shape().channels * pool * pool), inner = linear_start(hidden);
    chain.classifier({.name = "classifier.1", .pool = pool, .dropout_before = dropout, .relu = true}, hidden, start,
                     start);
    chain.classifier({.name = "classifier.4", .dropout_before = dropout, .relu = true}, hidden, inner, inner);
    chain.classifier({.name = "classifier.6"}, classes, inner, inner);
  } else {
    const auto weight = Initial::normal(0.01), bias = Initial::zeros();
    chain.features(vgg_links(config.kind), ConvolutionStart::by_outputs);
    chain.classifier({.name = "classifier.0", .pool = small ? 1 : 7, .dropout_after = dropout, .relu = true}, hidden,
                     weight, bias);
    chain.classifier({.name = "classifier.3", .dropout_after = dropout, .relu = true}, hidden, weight, bias);
    chain.classifier({.name = "classifier.6"}, classes, weight, bias);
  }
  return chain.chain();
}

}  // namespace trireme
