// A model is an ordered list of layers; between any two of them it can be cut. What passes from one layer to the next
// is one tensor, whose first dim is the batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/nn/parameter.h"
#include "trireme/nn/projection.h"
#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

// Keys and values of the tokens seen so far, a pair [B, H, T, D] for each attention layer; for generation.
struct KeyValueCache {
  std::vector<std::pair<at::Tensor, at::Tensor>> layers;
  int64_t length = 0;
};

// Brings together what each replica gives: row r of the result is replica r's, the same on all. Every replica calls it,
// and for the same things in the same order.
using GatherReplicas = std::function<at::Tensor(const at::Tensor& given)>;

// Which tokens of packed samples belong together. Undefined: each sample is one document.
struct Documents {
  at::Tensor positions_BT;  // of each token in its document
  at::Tensor seen_B1TT;     // true where a token may look: itself and what lies before it in its document
};

// What a forward pass knows besides its input.
struct Pass {
  bool training = false;
  Key dropout;         // of (seed, step)
  at::Tensor samples;  // identities of the batch's samples, int64 on the host
  Documents documents;
  KeyValueCache* cache = nullptr;  // set while generating
  // Called before each layer of the model that is passed: its parameters may still be on their way.
  const std::function<void(size_t layer)>* before_layer = nullptr;
  const GatherReplicas* replicas = nullptr;  // set where other replicas have samples of the same microbatch
};

class Layer {
 public:
  explicit Layer(std::string name) : name_(std::move(name)) {}
  virtual ~Layer() = default;

  virtual at::Tensor forward(const at::Tensor& input, const Pass& pass) = 0;
  virtual LayerSpec spec() const = 0;

  const std::string& name() const { return name_; }
  // In the order of their first use; the gradients become ready in the reverse order.
  const ParameterList& parameters() const { return parameters_; }
  const BufferList& buffers() const { return buffers_; }

 protected:
  // Makes a parameter of this layer: a matrix, which decays, or a vector, which does not. The weights of a convolution
  // [O, I, H, W] lie in memory as [O, H, W, I], as its kernels want them.
  ParameterPtr add(const std::string& name, std::vector<int64_t> shape, Initial initial);
  BufferPtr remember(const std::string& name, at::Tensor value);
  // A projection NAME with NAME.weight, NAME.bias where wanted, and an adapter where the configuration asks for one.
  Projection add_projection(const std::string& name, int64_t inputs, int64_t outputs, WeightLayout layout, bool bias,
                            Initial initial, const ModelConfig& config);
  // Uses another layer's parameter too.
  ParameterPtr share(ParameterPtr parameter);

  std::string name_;
  ParameterList parameters_;
  BufferList buffers_;
};

}  // namespace trireme
