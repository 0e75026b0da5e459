// Models by name: layers, parameters and loss. What a model is made of does not depend on how it is trained.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

// The output of layer `from` is also added to the input of layer `to`, however many layers lie between.
struct Skip {
  size_t from, to;
};

// Sum of the cross entropies of the batch, in fp32 or fp64. output [..., classes], targets [...].
at::Tensor cross_entropy_sum(const at::Tensor& output, const at::Tensor& targets);

class Model {
 public:
  std::vector<std::shared_ptr<Layer>> layers;  // shared with the parts that a model is cut into
  std::vector<Skip> skips;
  // Of the output and the targets: the sum over all items of the batch.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> loss = cross_entropy_sum;

  at::Tensor forward(const at::Tensor& input, const Pass& pass) const;
  // The same for layers that are the whole model's from number `first` on; `skipped` holds what skips carry, one each.
  at::Tensor forward(const at::Tensor& input, const Pass& pass, size_t first, std::vector<at::Tensor>& skipped) const;

  // Every parameter once, in the order of first use.
  ParameterList parameters() const;
  BufferList buffers() const;
  LayerTable table(int64_t element_bytes) const;

  // Draws every parameter anew: a pure function of (seed, the parameter's name).
  void initialize(uint64_t seed);
  // Moves all parameters to a type and device, and all buffers.
  void to(at::ScalarType dtype, at::Device device);
  // Running statistics become fp32, or fp64 where the parameters are.
  void buffers_to(at::ScalarType dtype, at::Device device);
};

// `vocab` is what the data needs when the configuration leaves it open. Parameters are fp64 on the CPU until to().
std::unique_ptr<Model> build_model(const ModelConfig& config, int64_t vocab);

// The parts of build_model.
std::unique_ptr<Model> build_gpt(const ModelConfig& config, int64_t vocab);
std::unique_ptr<Model> build_llama(const ModelConfig& config, int64_t vocab);
std::unique_ptr<Model> build_mlp(const ModelConfig& config);
std::unique_ptr<Model> build_resnet(const ModelConfig& config);
std::unique_ptr<Model> build_vgg(const ModelConfig& config);
std::unique_ptr<Model> build_cnn(const ModelConfig& config);
std::unique_ptr<Model> build_alexnet(const ModelConfig& config);
std::unique_ptr<Model> build_googlenet(const ModelConfig& config);

}  // namespace trireme
