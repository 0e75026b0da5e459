// A stage: consecutive layers of the model on one rank, and what crosses their borders. Layers hand one tensor to the
// next; a skip adds tensors that pass over whole stages. The gradients travel the same ways back. A rank may hold
// several of them (chunks): each is a *part* of the model, and parts are numbered as the model passes them.
#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/model.h"
#include "trireme/spec/mesh.h"

namespace trireme {

// A tensor that is made in one part and used in a later one.
struct Crossing {
  int from = 0, to = 0;  // parts
  uint16_t way = 0;      // 0: what one layer hands to the next; k + 1: the model's k-th skip

  bool operator==(const Crossing&) const = default;
};

// The stages of ranks that share parameters, such as a head tied to the embedding, in order.
struct Tie {
  std::vector<int> stages;
};

// Finds what stages share, the same on all ranks, and notes it in the parameters, with how often a microbatch's passes
// through this rank's stage write each gradient.
std::vector<Tie> find_ties(const Model& whole, const std::vector<int64_t>& begins, const Mesh& mesh, int stage);

class Stage {
 public:
  // Takes a part of the model; `begins` as of part_begins().
  Stage(const Model& whole, const std::vector<int64_t>& begins, int part);

  Model& model() { return *model_; }
  bool first() const { return part_ == 0; }
  bool last() const { return part_ + 1 == parts_; }
  const std::vector<Crossing>& incoming() const { return incoming_; }
  const std::vector<Crossing>& outgoing() const { return outgoing_; }

  // `inputs` are what incoming() lists, or the samples in the first part; the result is what outgoing() lists, or the
  // model's output in the last.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const;

 private:
  int part_, parts_;
  int64_t begin_, end_;
  std::unique_ptr<Model> model_;  // skips keep the layer numbers of the whole model
  std::vector<Crossing> incoming_, outgoing_;
};

}  // namespace trireme
