// The gradients as torch's users know them: between backward passes each parameter's .grad, which they may reset,
// replace, scale and clip. It is the memory of the parameter's slot, so that nothing is copied; while a backward pass
// runs .grad is empty, and the slots hold the gradients.
//
// A backward pass adds to what .grad holds, as torch's does. In a loop in which nobody ever resets a gradient, one that
// an optimizer has used is not added to: the next step begins anew, as if zero_grad() had been called.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/nn/parameter.h"

namespace trireme {

class ShownGradients {
 public:
  explicit ShownGradients(const ParameterList& parameters);
  ShownGradients(const ParameterList& parameters, const ShownGradients& before);

  // After a backward pass: the .grad of parameters that have a gradient is their slot. `complete`: optimizers may use
  // it.
  void show(bool complete);
  // What users have made of .grad is in the slots from now on.
  void take();
  // Before a backward pass: takes what .grad holds, which counts as `weight` of itself in what the pass adds to, and
  // empties .grad. The first pass of a step leaves out what an optimizer has used.
  void hide(bool first, double weight);

  // By parameter: whether it has a gradient. Without one an optimizer leaves it as it is.
  std::vector<char>& has() { return has_; }

  void reset(bool set_to_none);
  // An optimizer of ours has used them.
  void used() { used_ = true; }
  // Optimizers of ours say when they do; torch's are known by the parameters that they change.
  void expect_used() { expects_used_ = true; }

 private:
  bool was_reset(size_t i) const;
  bool was_used(size_t i) const;
  void warn_of_unused();

  ParameterList parameters_;
  std::vector<at::Tensor> shown_;  // by parameter: what .grad is, as long as its user does not replace it
  std::vector<char> has_;
  // By parameter: as they were when gradients were shown. An update that rounds away changes the version alone.
  std::vector<at::Tensor> values_;
  std::vector<uint64_t> versions_;
  bool resets_ = false;             // the user resets gradients, as most loops do: nothing has to be guessed
  bool expects_used_ = false, used_ = false;
  bool warned_ = false;
};

}  // namespace trireme
