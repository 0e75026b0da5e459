// The loops of a BatchNorm on the host, over images that lie with their channels last: rows [R, C], one for each pixel
// of each sample. A ReLU, and a residual that is added before it, are done in the same passes over memory: on the CPU
// those passes are what a BatchNorm costs. Sums are made block by block in a fixed order, so they do not depend on how
// many threads make them.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme {

// What every channel is normalised by, fp64: y = (x - mean) · scale + shift.
struct ChannelScale {
  at::Tensor mean_C, scale_C, shift_C;
};

// fp64 [2, C]: the means of the channels, and the sums of squared deviations from them.
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

}  // namespace trireme
