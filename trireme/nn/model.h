// Models by name: layers, parameters and loss. What a model is made of does not depend on how it is trained.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

// Sum of the cross entropies of the batch, in fp32 or fp64. output [..., classes], targets [...].
at::Tensor cross_entropy_sum(const at::Tensor& output, const at::Tensor& targets);

class Model {
 public:
  std::vector<std::shared_ptr<Layer>> layers;  // shared with the parts that a model is cut into
  std::vector<Skip> skips;
  int64_t input = 0;  // elements of a sample; 0: unknown
  // Of the output and the targets: the sum over all items of the batch.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)> loss = cross_entropy_sum;

  at::Tensor forward(const at::Tensor& input, const Pass& pass) const;
  // The same for layers that are the whole model's from number `first` on; `skipped` holds what skips carry, one each.
  at::Tensor forward(const at::Tensor& input, const Pass& pass, size_t first, std::vector<at::Tensor>& skipped) const;

  // Every parameter once, in the order of first use.
  ParameterList parameters() const;
  BufferList buffers() const;
  LayerTable table(int64_t element_bytes) const;

  // Draws every parameter anew, in fp64 on the host where it has no place yet: see draw().
  void initialize(uint64_t seed);
  // Moves all parameters to a type and device, and all buffers. What has no values yet only gets its place there.
  void to(at::ScalarType dtype, at::Device device);
  // Running statistics become fp32, or fp64 where the parameters are.
  void buffers_to(at::ScalarType dtype, at::Device device);
};

// `vocab` is what the data needs when the configuration leaves it open. Parameters have no place in memory until
// initialize(), to(), or a store gives them one.
std::unique_ptr<Model> build_model(const ModelConfig& config, int64_t vocab);

// The parts of build_model.
using ModelParts = std::vector<LayerParts>;  // by layer
using Layers = std::vector<std::shared_ptr<Layer>>;
Layers build_gpt(const ModelParts& parts, const ModelConfig& config);
Layers build_llama(const ModelParts& parts, const ModelConfig& config);
Layers build_mlp(const ModelParts& parts, const ModelConfig& config);
Layers build_resnet(const ModelParts& parts, const ModelConfig& config);
Layers build_chain(const ModelParts& parts, const ModelConfig& config);
Layers build_googlenet(const ModelParts& parts, const ModelConfig& config);

}  // namespace trireme
