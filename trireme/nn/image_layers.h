// What image models are made of, as spec/models/image_models.h describes it: convolutions with BatchNorm, poolings, and
// the classifier's linear layers, which follow a convolutional part.
// Dims: B batch, C channels, H height, W width (equal), O outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "trireme/nn/batch_norm.h"
#include "trireme/nn/image_functions.h"
#include "trireme/nn/layer.h"
#include "trireme/spec/models/image_models.h"

namespace trireme {

struct Convolution {
  ParameterPtr weight, bias;  // no bias before a BatchNorm
  Window window;

  at::Tensor operator()(const at::Tensor& x_BCHW) const { return convolution(x_BCHW, weight, bias, window); }
};

// A convolution with its BatchNorm.
struct NormedConvolution {
  Convolution convolution;
  BatchNorm norm;

  // relu(normalised + residual), where `relu` is asked for and `residual_BCHW` is defined.
  at::Tensor operator()(const at::Tensor& x_BCHW, const Pass& pass, bool relu = true,
                        const at::Tensor& residual_BCHW = {}) const {
    return batch_norm(convolution(x_BCHW), norm, pass, relu, residual_BCHW);
  }
};

class ImageLayer : public Layer {
 protected:
  using Layer::Layer;

  Convolution make(const ConvolutionSpec& spec) const;
  BatchNorm make(const NormSpec& spec) const;
  NormedConvolution make(const ConvolutionUnit& spec) const { return {make(spec.convolution), make(spec.norm)}; }
};

class Classifier final : public Layer {
 public:
  Classifier(LayerParts parts, const ClassifierSpec& spec);

  at::Tensor forward(const at::Tensor& x, const Pass& pass) override;

 private:
  ClassifierSpec classifier_;
  ParameterPtr weight_, bias_;
};

// Max pooling that keeps the channels last; none without a window.
at::Tensor max_pool(const at::Tensor& x_BCHW, const std::optional<Window>& window, bool ceil = false);

}  // namespace trireme
