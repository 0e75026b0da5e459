// The differentiable operations that we do not leave to torch, above all those that touch parameters. Their backward
// passes write parameter gradients straight into the parameters' slots; only input gradients travel through autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/base/random.h"
#include "trireme/nn/parameter.h"
#include "trireme/nn/rotary_kernel.h"

namespace trireme {

// How a weight matrix lies: GPT-2's files hold [in, out], torch's Linear [out, in].
enum class WeightLayout : uint8_t { in_out, out_in };

// x · W + b over the last dim of x. `bias` may be null.
at::Tensor linear(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, WeightLayout layout);

// x · Wᵀ for several weights [out, in] that read the same input: one result each.
std::vector<at::Tensor> linears(const at::Tensor& x, const ParameterList& weights);

// Rows `ids` of the table: [B, T] -> [B, T, C].
at::Tensor embedding(const at::Tensor& ids, const ParameterPtr& table);

at::Tensor layer_norm(const at::Tensor& x, const ParameterPtr& gain, const ParameterPtr& bias, double epsilon = 1e-5);

at::Tensor rms_norm(const at::Tensor& x, const ParameterPtr& gain, double epsilon);

// Turns queries or keys by their positions; see rotary_kernel.h.
at::Tensor rotary(const at::Tensor& x_BTHD, const Rotations& rotations, int64_t first, const at::Tensor& positions_BT);

// silu(gate) · up.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// In its tanh form, as GPT-2 uses it.
at::Tensor gelu_tanh(const at::Tensor& x);

// Which elements of a sample are dropped depends on (key, the sample's identity, the element's place) alone: not on how
// the batch is split over ranks and microbatches, nor on the device. The mask is drawn again in the backward pass
// instead of being kept. Dim 0 of x is the batch, samples[b] (int64, on the host) the identity of its b-th sample.
at::Tensor dropout(const at::Tensor& x, double probability, Key key, const at::Tensor& samples);

}  // namespace trireme
