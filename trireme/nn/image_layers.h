// What image models are made of: a layer that counts its work, depth and memory while its parts are added, and the
// classifier's linear layers, which follow a convolutional part. Names and layouts are those of torchvision's files.
// Dims: B batch, C channels, H height, W width (equal), O outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/nn/batch_norm.h"
#include "trireme/nn/image_functions.h"
#include "trireme/nn/layer.h"
#include "trireme/spec/config.h"

namespace trireme {

// Images of fewer pixels a side would be one pixel after half of the layers: the models take other first layers, and
// average what is left to one pixel before the classifier.
constexpr int64_t small_image = 64;

// One image, or what has become of it.
struct ImageShape {
  int64_t channels = 0, size = 0;

  int64_t elements() const { return channels * size * size; }
};

struct Convolution {
  ParameterPtr weight, bias;  // no bias before a BatchNorm
  Window window;

  at::Tensor operator()(const at::Tensor& x_BCHW) const { return convolution(x_BCHW, weight, bias, window); }
};

class ImageLayer : public Layer {
 public:
  ImageLayer(std::string name, ImageShape input) : Layer(std::move(name)), shape_(input) { counts_.name = name_; }

  LayerSpec spec() const override;
  ImageShape output() const { return shape_; }

 protected:
  // How a convolution starts: He's normal by its outputs (ResNet, VGG), torch's own uniform by its inputs (AlexNet), or
  // a plain normal (GoogLeNet).
  enum class Start { by_outputs, by_inputs, narrow };

  // Each makes a part that works on images of the shape `from`, counts it, and moves `from` to its output.
  Convolution add_convolution(const std::string& name, ImageShape& from, int64_t outputs, Window window, Start start,
                              bool with_bias);
  BatchNorm add_norm(const std::string& name, ImageShape from, double epsilon = 1e-5);
  void count_pool(ImageShape& from, Window window, bool ceil = false);

  void count(double flops, double depth, int64_t activations);
  // What `parts` parts keep for their backward passes, each of which counted it, is one and the same.
  void count_once(ImageShape kept, int64_t parts) { count(0, 0, -(parts - 1) * kept.elements()); }

  ImageShape shape_;

 private:
  LayerSpec counts_;
};

// A linear layer of a classifier, with what comes before it: an image is averaged to size × size pixels and flattened,
// and dropout; and after it: ReLU, and dropout.
struct ClassifierOptions {
  int64_t pool = 0;  // pixels a side; 0: vectors come in
  double dropout_before = 0, dropout_after = 0;
  bool relu = false;
  Initial weight, bias;
};

class Classifier final : public Layer {
 public:
  Classifier(std::string name, ImageShape input, int64_t outputs, ClassifierOptions options);

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override;
  LayerSpec spec() const override;

 private:
  int64_t inputs_, outputs_, input_elements_;
  ClassifierOptions options_;
  ParameterPtr weight_, bias_;
};

// As torch's Linear starts.
Initial linear_start(int64_t inputs);

// Max pooling that keeps the channels last.
at::Tensor max_pool(const at::Tensor& x_BCHW, Window window, bool ceil = false);

}  // namespace trireme
