// Comparing tensors in tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme {

// ‖a − b‖ / ‖b‖ over all elements, in fp64; plain ‖a‖ when b is all zeros.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const auto expected = b.detach().to(at::kDouble), difference = a.detach().to(at::kDouble) - expected;
  const double size = expected.norm().item<double>(), gap = difference.norm().item<double>();
  return size > 0 ? gap / size : gap;
}

inline void expect_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  ASSERT_TRUE(found.defined() && expected.defined());
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE(distance(found, expected), tolerance);  // false for NaN too
}

// Numbers that look random and are the same in every run; `salt` tells tensors apart.
inline at::Tensor numbers(at::IntArrayRef shape, int64_t salt, at::ScalarType type = at::kDouble) {
  const auto places = at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble);
  return at::sin(places * (1.7 + 0.31 * static_cast<double>(salt)) + places * places * 0.37).view(shape).to(type);
}

}  // namespace trireme
