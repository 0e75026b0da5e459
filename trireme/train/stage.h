// A stage: consecutive layers of the model on one rank, and what crosses their borders. Layers hand one tensor to the
// next; a skip adds tensors that pass over whole stages. The gradients travel the same ways back. A rank may hold
// several of them (chunks): each is a *part* of the model, and parts are numbered as the model passes them.
#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/model.h"
#include "trireme/spec/parts.h"

namespace trireme {

// Gives the parameters that a stage holds what spec/parts knows of them: who shares them, and how often a microbatch's
// passes write their gradients. `table` is the whole model's.
void note_sharing(const Model& whole, const LayerTable& table, const Plan& plan, int stage);

class Stage {
 public:
  // Takes a part of the model; `begins` as of part_begins().
  Stage(const Model& whole, const std::vector<int64_t>& begins, int part);

  Model& model() { return *model_; }
  bool first() const { return part_ == 0; }
  bool last() const { return part_ + 1 == parts_; }
  const std::vector<Crossing>& incoming() const { return crossings_.incoming; }
  const std::vector<Crossing>& outgoing() const { return crossings_.outgoing; }

  // `inputs` are what incoming() lists, or the samples in the first part; the result is what outgoing() lists, or the
  // model's output in the last.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const;

 private:
  int part_, parts_;
  int64_t begin_, end_;
  std::unique_ptr<Model> model_;  // skips keep the layer numbers of the whole model
  Crossings crossings_;
};

}  // namespace trireme
