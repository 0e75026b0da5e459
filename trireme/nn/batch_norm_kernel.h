// The loops of a BatchNorm, over images that lie with their channels last: rows [R, C], one for each pixel of each
// sample. A ReLU, and a residual that is added before it, are done in the same passes over memory: those passes are
// what a BatchNorm costs, on the CPU and on a card. Sums are made block by block in a fixed order, so they are the same
// at every run and do not depend on how many threads make them. Nothing here waits for a card.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

// What every channel is normalised by, fp64: y = (x - mean) · scale + shift.
struct ChannelScale {
  at::Tensor mean_C, inverse_C, scale_C, shift_C;  // inverse: 1 / deviation; scale: gain · inverse
};

// fp64 [2 C + 1]: the means of the channels, the sums of squared deviations from them, and how many elements of each
// channel these are of.
at::Tensor channel_moments(const at::Tensor& x_BCHW);

// `residual_BCHW` may be undefined.
at::Tensor scale_channels(const at::Tensor& x_BCHW, const ChannelScale& scale, bool relu,
                          const at::Tensor& residual_BCHW);

// What came back, g, where the ReLU let it pass: all of it without one; with a residual, where its output y is above 0;
// otherwise where the scaled x is.
struct PassedGradient {
  at::Tensor g_BCHW;
  bool relu = false;
  at::Tensor y_BCHW;  // defined: with a residual
};

// fp64 [2, C]: the sums of g, and of g · (x - mean). With a residual g becomes what passed.
at::Tensor gradient_sums(PassedGradient& gradient, const at::Tensor& x_BCHW, const ChannelScale& scale);

// g · scale + (x - mean) · slope + offset, fp64 [C] each.
at::Tensor input_gradient(const PassedGradient& gradient, const at::Tensor& x_BCHW, const ChannelScale& scale,
                          const at::Tensor& slope_C, const at::Tensor& offset_C);

struct NormTensors {
  at::Tensor gain_C, bias_C;                      // of one type with the next two
  at::Tensor running_mean_C, running_variance_C;  // take `momentum` of the new ones
  at::Tensor batches;                             // int64, one more
  double epsilon, momentum;
};

// The small sums between those loops, on a card: one kernel instead of a dozen.
ChannelScale channel_scale_cuda(const at::Tensor& moments_K, const NormTensors& norm);

struct GradientTerms {
  at::Tensor slope_C, offset_C, gain_C;  // gain: its gradient
};
// `own_2C` of this replica, `all_2C` of all of them, who have `count` elements a channel (a tensor of one).
GradientTerms gradient_terms_cuda(const at::Tensor& own_2C, const at::Tensor& all_2C, const at::Tensor& count,
                                  const ChannelScale& scale);

// The loops on a card.
at::Tensor channel_moments_cuda(const at::Tensor& x_BCHW);
at::Tensor scale_channels_cuda(const at::Tensor& x_BCHW, const ChannelScale& scale, bool relu,
                               const at::Tensor& residual_BCHW);
at::Tensor gradient_sums_cuda(PassedGradient& gradient, const at::Tensor& x_BCHW, const ChannelScale& scale);
at::Tensor input_gradient_cuda(const PassedGradient& gradient, const at::Tensor& x_BCHW, const ChannelScale& scale,
                               const at::Tensor& slope_C, const at::Tensor& offset_C);

}  // namespace trireme
