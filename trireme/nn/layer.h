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
  size_t recomputed = 0;  // so many layers, the model's first, keep their inputs alone: see recompute.h
  // Called when such a layer has been computed again, before its backward pass.
  const std::function<void()>* computed_again = nullptr;
};

// What a layer is made of: its row of the model's table, and its parameters and buffers.
struct LayerParts {
  LayerSpec spec;
  ParameterList parameters;
  BufferList buffers;
};

class Layer {
 public:
  explicit Layer(LayerParts parts) : parts_(std::move(parts)) {}
  virtual ~Layer() = default;

  virtual at::Tensor forward(const at::Tensor& input, const Pass& pass) = 0;
  // Whether it leaves its input as it is, and draws nothing from torch's generators: those of others may do both.
  virtual bool is_pure() const { return true; }

  const std::string& name() const { return parts_.spec.name; }
  const LayerSpec& spec() const { return parts_.spec; }
  // In the order of their first use; the gradients become ready in the reverse order.
  const ParameterList& parameters() const { return parts_.parameters; }
  const BufferList& buffers() const { return parts_.buffers; }

 protected:
  // By its name in the table.
  ParameterPtr parameter(const std::string& name) const;
  BufferPtr buffer(const std::string& name) const;
  // Its weight, and the bias and the adapter that the table has beside it.
  Projection projection(const std::string& name, WeightLayout layout, const ModelConfig& config) const;

  LayerParts parts_;
};

}  // namespace trireme
