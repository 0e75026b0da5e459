// Models that are one chain of convolutions and a classifier of a few linear layers: VGG-11 and -16 (without BatchNorm)
// and AlexNet, as torchvision has them, and a small one for trying things out (two convolutions of 16 and 32 channels,
// each with a pooling, and 128 hidden units). A convolution with the ReLU and the pooling behind it is a layer.
// Images of fewer than 64 pixels: AlexNet begins with a 3x3 convolution of stride 2, and its pooling pads by 1; a
// pooling of VGG that would leave nothing is left out; what comes out is averaged to one pixel, and the hidden layers
// of the classifier are 512 wide.
#include <ATen/ATen.h>

#include <optional>

#include "trireme/nn/image_layers.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Feature final : public ImageLayer {
 public:
  enum class Family { vgg, alexnet };

  Feature(Family family, int64_t place, ImageShape input, int64_t outputs, Window window, std::optional<Window> pool)
      : ImageLayer(fmt::format("features.{}", place), input), pool_(pool) {
    const auto start = family == Family::vgg ? Start::by_outputs : Start::by_inputs;
    convolution_ = add_convolution(name_, shape_, outputs, window, start, true);
    if (pool_ && pool_->places(shape_.size) < 1) pool_.reset();
    if (pool_) count_pool(shape_, *pool_);
  }

  at::Tensor forward(const at::Tensor& x, const Pass&) override {
    auto y = convolution_(x);
    at::relu_(y);
    return pool_ ? max_pool(y, *pool_) : y;
  }

 private:
  std::optional<Window> pool_;
  Convolution convolution_;
};

// A convolution of the chain.
struct Link {
  int64_t outputs;
  Window window;
  std::optional<Window> pool;
};

ImageShape add_features(Model& model, Feature::Family family, const ModelConfig& config,
                        const std::vector<Link>& links) {
  ImageShape shape{config.channels, config.image};
  int64_t place = 0;  // in torchvision's list, which counts ReLUs and poolings too
  for (const auto& link : links) {
    auto layer = std::make_unique<Feature>(family, place, shape, link.outputs, link.window, link.pool);
    shape = layer->output();
    model.layers.push_back(std::move(layer));
    place += link.pool ? 3 : 2;
  }
  return shape;
}

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

}  // namespace

std::unique_ptr<Model> build_vgg(const ModelConfig& config) {
  auto model = std::make_unique<Model>();
  const bool small = config.image < small_image;
  const int64_t hidden = small ? 512 : 4096;
  const auto shape = add_features(*model, Feature::Family::vgg, config, vgg_links(config.kind));
  ClassifierOptions options{.pool = small ? 1 : 7,
                            .dropout_after = config.dropout,
                            .relu = true,
                            .weight = Initial::normal(0.01),
                            .bias = Initial::zeros()};
  model->layers.push_back(std::make_unique<Classifier>("classifier.0", shape, hidden, options));
  options.pool = 0;
  model->layers.push_back(std::make_unique<Classifier>("classifier.3", ImageShape{hidden, 1}, hidden, options));
  options.relu = false;
  options.dropout_after = 0;
  model->layers.push_back(std::make_unique<Classifier>("classifier.6", ImageShape{hidden, 1}, config.classes, options));
  return model;
}

std::unique_ptr<Model> build_alexnet(const ModelConfig& config) {
  auto model = std::make_unique<Model>();
  const bool small = config.image < small_image;
  const int64_t hidden = small ? 512 : 4096, pool = small ? 1 : 6;
  const auto shape = add_features(*model, Feature::Family::alexnet, config, alexnet_links(small));
  const auto start = linear_start(shape.channels * pool * pool), inner = linear_start(hidden);
  ClassifierOptions options{
      .pool = pool, .dropout_before = config.dropout, .relu = true, .weight = start, .bias = start};
  model->layers.push_back(std::make_unique<Classifier>("classifier.1", shape, hidden, options));
  options.pool = 0;
  options.weight = options.bias = inner;
  model->layers.push_back(std::make_unique<Classifier>("classifier.4", ImageShape{hidden, 1}, hidden, options));
  options.relu = false;
  options.dropout_before = 0;
  model->layers.push_back(std::make_unique<Classifier>("classifier.6", ImageShape{hidden, 1}, config.classes, options));
  return model;
}

std::unique_ptr<Model> build_cnn(const ModelConfig& config) {
  auto model = std::make_unique<Model>();
  constexpr int64_t hidden = 128;
  const Window window{3, 1, 1}, pool{2, 2, 0};
  const auto shape = add_features(*model, Feature::Family::alexnet, config, {{16, window, pool}, {32, window, pool}});
  const auto start = linear_start(shape.elements()), inner = linear_start(hidden);
  ClassifierOptions options{
      .pool = shape.size, .dropout_after = config.dropout, .relu = true, .weight = start, .bias = start};
  model->layers.push_back(std::make_unique<Classifier>("classifier.0", shape, hidden, options));
  options = {.weight = inner, .bias = inner};
  model->layers.push_back(std::make_unique<Classifier>("classifier.2", ImageShape{hidden, 1}, config.classes, options));
  return model;
}

}  // namespace trireme
