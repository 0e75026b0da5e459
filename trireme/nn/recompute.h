// A layer that keeps its input alone: what lies between is computed again when the backward pass comes to the layer, and
// is gone before it comes to the next one.
#pragma once

#include <memory>

#include "trireme/nn/layer.h"

namespace trireme {

// What layer.forward(input, pass) gives, and the same gradients: random masks are functions of the step and the samples,
// what a layer remembers changes once, and what was gathered from replicas is not gathered again. To the last bit, but
// for the order of a sum where a skip adds to the gradient of its input.
at::Tensor recomputed(const std::shared_ptr<Layer>& layer, const at::Tensor& input, const Pass& pass);

}  // namespace trireme
