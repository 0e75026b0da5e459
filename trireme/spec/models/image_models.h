// What image models are made of: convolutions, BatchNorms and poolings, each of which counts its work and depth in the
// layer that it is described in, and the classifier's linear layers behind them. Names and layouts are those of
// torchvision's files. Beside the table, each model is described as its layers compute it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"
#include "trireme/spec/models/models.h"

namespace trireme {

// Images of fewer pixels a side would be one pixel after half of the layers: the models take other first layers, and
// average what is left to one pixel before the classifier.
constexpr int64_t small_image = 64;

// One image, or what has become of it.
struct ImageShape {
  int64_t channels = 0, size = 0;

  int64_t elements() const { return channels * size * size; }
};

// A square window that moves over an image.
struct Window {
  int64_t size = 1, stride = 1, padding = 0;

  // How many places it takes along `length` pixels; `ceil`: also one that hangs over the end.
  int64_t places(int64_t length, bool ceil = false) const;
};

// Parameters NAME.weight, and NAME.bias where there is no BatchNorm behind it.
struct ConvolutionSpec {
  std::string name;
  int64_t outputs = 0;
  Window window;
  bool bias = false;
};

// NAME.weight, NAME.bias, and the buffers NAME.running_mean, NAME.running_var and NAME.num_batches_tracked.
struct NormSpec {
  std::string name;
  double epsilon = 1e-5;
};

struct ConvolutionUnit {
  ConvolutionSpec convolution;
  NormSpec norm;
};

// A linear layer of a classifier, with what comes before it: an image is averaged to pool × pool pixels and flattened,
// and dropout; and after it: ReLU, and dropout.
struct ClassifierSpec {
  std::string name;
  int64_t pool = 0;  // pixels a side; 0: vectors come in
  double dropout_before = 0, dropout_after = 0;
  bool relu = false;
  ProjectionSpec linear;  // when it is described
};

// How a convolution starts: He's normal by its outputs (ResNet, VGG), torch's own uniform by its inputs (AlexNet), or a
// plain normal (GoogLeNet).
enum class ConvolutionStart { by_outputs, by_inputs, narrow };

// Each describes a part of the table's last layer that works on images of the shape `from`, counts it, and moves `from`
// to its output.
ConvolutionSpec describe_convolution(LayerTable& table, const std::string& name, ImageShape& from, int64_t outputs,
                                     Window window, ConvolutionStart start, bool bias);
NormSpec describe_norm(LayerTable& table, const std::string& name, ImageShape from, double epsilon = 1e-5);
void describe_pool(LayerTable& table, ImageShape& from, Window window, bool ceil = false);
// A layer of its own.
ClassifierSpec describe_classifier(LayerTable& table, ClassifierSpec spec, ImageShape from, int64_t outputs,
                                   Initial weight, Initial bias);

// ResNet-18 and -34 (two 3x3 convolutions a block) and -50 (1x1, 3x3 with the stride, 1x1). Each block is a layer.
struct ResNet {
  struct Block {
    std::vector<ConvolutionUnit> units;
    std::optional<ConvolutionUnit> shortcut;
  };
  ConvolutionUnit stem;
  std::optional<Window> pool;  // behind it
  std::vector<Block> blocks;
  ClassifierSpec classifier;
};
ResNet describe_resnet(LayerTable& table, const ModelConfig& config);

// One chain of convolutions and a classifier of a few linear layers: VGG-11 and -16 (without BatchNorm), AlexNet, and a
// small one for trying things out. A convolution with the ReLU and the pooling behind it is a layer.
struct Chain {
  struct Feature {
    ConvolutionSpec convolution;
    std::optional<Window> pool;
  };
  std::vector<Feature> features;
  std::vector<ClassifierSpec> classifiers;
};
Chain describe_chain(LayerTable& table, const ModelConfig& config);

// GoogLeNet with BatchNorm, without the auxiliary classifiers. Each inception block, with the pooling before it, is a
// layer: four branches beside each other, of 1x1; 1x1, 3x3; 1x1, 3x3 (5x5 in the paper); pooling, 1x1.
struct GoogLeNet {
  static constexpr Window branch_pool{3, 1, 1};
  struct Start {
    std::optional<Window> pool;
    ConvolutionUnit unit;
  };
  struct Inception {
    std::optional<Window> pool;
    ConvolutionUnit plain, before_second, second, before_third, third, pooled;
  };
  std::vector<Start> starts;
  std::vector<Inception> blocks;
  ClassifierSpec classifier;
};
GoogLeNet describe_googlenet(LayerTable& table, const ModelConfig& config);

}  // namespace trireme
