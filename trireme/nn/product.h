// x · W (+ b) for the layers: rows x [m, k] times a matrix [k, n].
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace trireme {

// `bias` may be undefined. On the CPU in fp32 the product is oneDNN's, whose kernels for wide vectors also run where
// MKL's (behind at::mm) do not, as on AMD's processors: 0 to 15 % faster on one core of an EPYC for the products of a
// 1024-wide MLP and a 384-wide GPT. Everything else is at::mm.
at::Tensor product(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias = {});

// out = left · right, or out += left · right, by the same choice of library; written straight into `out`.
void product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool add);

// The library that multiplies fp32 matrices on the CPU, with its version: "oneDNN 3.12.0", or torch's own choice.
std::string product_library();

}  // namespace trireme
