// BatchNorm in training: every channel is normalised by its mean and variance over a microbatch, and running averages
// of them are kept for evaluation. With replicas that have samples of the same microbatch, the statistics are those of
// all of them (synchronised BatchNorm): one exchange in the forward pass, of each replica's [mean, sum of squared
// deviations, count], put together by Chan's formula in the order of the replicas, so that all get the same bits; and
// one in the backward pass, of its sums of dy and of dy·(x - mean). A replica's samples weigh by their count, which may
// be 0.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/nn/batch_norm_kernel.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/parameter.h"

namespace trireme {

constexpr double batch_norm_momentum = 0.1;

struct BatchNorm {
  ParameterPtr gain, bias;
  BufferPtr mean, variance, batches;  // running_mean, running_var, num_batches_tracked
  double epsilon = 1e-5;
  double momentum = batch_norm_momentum;  // the share of a microbatch in the running averages
};

// relu(normalised x + residual), where `relu` is asked for and `residual_BCHW` is defined.
at::Tensor batch_norm(const at::Tensor& x_BCHW, const BatchNorm& norm, const Pass& pass, bool relu,
                      const at::Tensor& residual_BCHW = {});

// In training, over all replicas, of tensors that belong to somebody else: autograd takes the gradients of gain and
// bias.
at::Tensor batch_norm(const at::Tensor& x_BCHW, const NormTensors& norm, const GatherReplicas& replicas);

// The moments of all replicas, fp64 [2 C + 1], from the rows [means, sums of squared deviations, count] that they gave,
// by Chan's formula.
at::Tensor combine_moments(const at::Tensor& all_RK);

}  // namespace trireme
