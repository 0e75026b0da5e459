// A stage: consecutive layers of the model on one rank, and what crosses its borders. Layers hand one tensor to the
// next; a skip adds tensors that pass over whole stages. The gradients travel the same ways back.
#pragma once

#include <memory>
#include <vector>

#include "trireme/nn/model.h"
#include "trireme/spec/mesh.h"

namespace trireme {

// A tensor that is made in one stage and used in a later one.
struct Crossing {
  int from = 0, to = 0;  // stages
  uint16_t part = 0;     // 0: what one layer hands to the next; k + 1: the model's k-th skip
};

// The stages that share parameters, such as a head tied to the embedding, in order.
struct Tie {
  std::vector<int> stages;
};

class Stage {
 public:
  // Takes the whole model apart and keeps what is this stage's; the rest is let go before it takes up memory.
  Stage(std::unique_ptr<Model> whole, const std::vector<int64_t>& begins, int stage);

  Model& model() { return *model_; }
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ + 1 == stages_; }
  int64_t begin() const { return begin_; }
  const std::vector<Crossing>& incoming() const { return incoming_; }
  const std::vector<Crossing>& outgoing() const { return outgoing_; }
  const std::vector<Tie>& ties() const { return ties_; }  // of the whole model, the same on all ranks

  // `inputs` are what incoming() lists, or the samples in the first stage; the result is what outgoing() lists, or the
  // model's output in the last.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, const Pass& pass) const;

 private:
  void find_ties(const Model& whole, const std::vector<int64_t>& begins);

  int stage_, stages_;
  int64_t begin_, end_;
  std::unique_ptr<Model> model_;  // skips keep the layer numbers of the whole model
  std::vector<Crossing> incoming_, outgoing_;
  std::vector<Tie> ties_;
};

}  // namespace trireme
