// A parameter of a model: a leaf tensor with a name that is the same on every mesh, and the place its gradient goes to.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/spec/layer.h"

namespace trireme {

struct DeferredGradients;

// Where a parameter's gradient is written: a piece of a bucket that its owner gave it. The backward pass of a layer
// writes there itself. For a matrix product of the bucket's own type the product lands in the bucket, so the gradients
// that make up nearly all of a model are never zeroed, copied or accumulated in a pass of their own.
struct GradientSlot {
  at::Tensor view;
  bool fresh = true;                      // nothing written yet in this step: overwrite instead of adding
  int writes = 0;                         // in this backward pass
  std::function<void()> arrived;          // called after each write
  DeferredGradients* deferred = nullptr;  // set: products and column sums are put off until it computes them

  void add(const at::Tensor& gradient);                               // view (+)= gradient
  void add_product(const at::Tensor& left, const at::Tensor& right);  // view (+)= left · right
  void add_column_sums(const at::Tensor& rows);                       // view (+)= sum over the first dim
  void add_rows(const at::Tensor& places, const at::Tensor& rows);    // view[places[i]] (+)= rows[i]
  void add_nothing();                                                 // view (+)= 0
  // view (+)= what `gradient` gives, now or put off, from these two tensors.
  void add_computed(std::function<at::Tensor()> gradient, const at::Tensor& left, const at::Tensor& right);

 private:
  friend struct DeferredGradients;
  void write_product(const at::Tensor& left, const at::Tensor& right);
  void write_column_sums(const at::Tensor& rows);
  void written();
};

// Weight gradients that a backward pass has put off. Nobody waits for them before the step's end, but another stage
// waits for the input gradient, which half of the pass's work gives: so that goes first, and then these are computed.
// They keep what they are computed from alive: for a product its input and the gradient of its output.
struct DeferredGradients {
  struct Write {
    GradientSlot* slot = nullptr;
    at::Tensor left, right;                // a product; without `right` the column sums of `left`
    std::function<at::Tensor()> gradient;  // set: what it gives, instead, from these two
  };
  std::vector<Write> writes;

  void compute(size_t begin, size_t end);  // these, in the order in which they were put off; they keep nothing then
  int64_t bytes() const;                   // of the tensors that they keep alive, each once
};

// What its description says, and the tensor. Until somebody gives it a place in memory the value has a shape and
// nothing else (it lies on torch's device "meta").
struct Parameter : ParameterSpec {
  at::Tensor value;
  int uses = 1;           // how often one backward pass writes the gradient (a tied embedding: twice)
  bool optional = false;  // a backward pass may also leave it out
  int tie = -1;           // which set of stages shares it, where more than one does
  bool owned = true;      // of these stages, this one counts and saves it
  GradientSlot gradient;
};

using ParameterPtr = std::shared_ptr<Parameter>;
using ParameterList = std::vector<ParameterPtr>;

// Without a place in memory yet.
ParameterPtr make_parameter(const ParameterSpec& spec);
// The values that a parameter starts with, a pure function of (seed, its name), written into a tensor of its shape, of
// any type and on any device: part by part, so that there is never a second whole copy.
void draw(const ParameterSpec& parameter, uint64_t seed, const at::Tensor& into);

// What a layer remembers from step to step besides its parameters, and no gradient changes: running statistics, which
// are never narrower than fp32, and counts (int64).
struct Buffer {
  std::string name;
  at::Tensor value;
};

using BufferPtr = std::shared_ptr<Buffer>;
using BufferList = std::vector<BufferPtr>;

}  // namespace trireme
