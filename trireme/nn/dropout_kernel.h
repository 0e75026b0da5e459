// y = x · mask / (1 − probability), the mask drawn from (key, sample, place). One file for each kind of device.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/base/random.h"

namespace trireme {

at::Tensor drop(const at::Tensor& x, double probability, Key key, const at::Tensor& samples);

// The CUDA kernel behind it; `keys` holds a stream for each sample, on the card. Refuses in a build without CUDA.
void drop_cuda(const at::Tensor& x, const at::Tensor& y, const at::Tensor& keys, uint32_t threshold, double scale);

}  // namespace trireme
