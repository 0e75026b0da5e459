// The differentiable operations that we do not leave to torch, above all those that touch parameters. Their backward
// passes write parameter gradients straight into the parameters' slots; only input gradients travel through autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/base/random.h"
#include "trireme/nn/parameter.h"

namespace trireme {

// How a weight matrix lies: GPT-2's files hold [in, out], torch's Linear [out, in].
enum class WeightLayout : uint8_t { in_out, out_in };

// x · W + b over the last dim of x. `bias` may be null.
at::Tensor linear(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, WeightLayout layout);

// Rows `ids` of the table: [B, T] -> [B, T, C].
at::Tensor embedding(const at::Tensor& ids, const ParameterPtr& table);

at::Tensor layer_norm(const at::Tensor& x, const ParameterPtr& gain, const ParameterPtr& bias, double epsilon = 1e-5);

// In its tanh form, as GPT-2 uses it.
at::Tensor gelu_tanh(const at::Tensor& x);

// Which elements of a sample are dropped depends on (key, the sample's identity, the element's place) alone: not on how
// the batch is split over ranks and microbatches, nor on the device. The mask is drawn again in the backward pass
// instead of being kept. Dim 0 of x is the batch, samples[b] (int64, on the host) the identity of its b-th sample.
at::Tensor dropout(const at::Tensor& x, double probability, Key key, const at::Tensor& samples);

}  // namespace trireme
