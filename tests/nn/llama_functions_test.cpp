// RMSNorm, rotary positions, SwiGLU and products that share an input, against torch's autograd on plain formulas.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/close.h"
#include "tests/nn/watched.h"
#include "trireme/base/error.h"
#include "trireme/nn/functions.h"

namespace trireme {
namespace {

struct Tolerance {
  at::ScalarType type;
  double values;
};
const std::vector<Tolerance> types{{at::kDouble, exact}, {at::kFloat, 1e-6}, {at::kBFloat16, 1e-2}};

at::ScalarType gradient_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& gain, double epsilon) {
  return x * at::rsqrt(x.square().mean(-1, true) + epsilon) * gain;
}

TEST(RmsNorm, AgreesWithAutograd) {
  for (const auto& [type, tolerance] : types) {
    // Widths of whole registers and with a rest; rows for one chunk and for several.
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1, 1}, {5, 7}, {2, 3, 32}, {3, 50, 69}, {4, 64, 384}}) {
      SCOPED_TRACE(fmt::format("{} in shape [{}]", c10::toString(type), fmt::join(shape, ", ")));
      Watched gain(numbers({shape.back()}, 1, type) + 1, gradient_type(type));
      const auto x = leaf(numbers(shape, 2, type));
      const auto x_plain = leaf(x.to(at::kDouble)), gain_plain = leaf(gain.parameter->value.to(at::kDouble));
      const auto y = rms_norm(x, gain.parameter, 1e-5);
      const auto y_plain = plain_rms_norm(x_plain, gain_plain, 1e-5);
      EXPECT_EQ(y.scalar_type(), type);
      expect_close(y, y_plain, tolerance);
      const auto pull = numbers(shape, 3, type);
      y.backward(pull);
      y_plain.backward(pull.to(at::kDouble));
      expect_close(gain.gradient(), gain_plain.grad(), tolerance);
      // In one dim the two halves of the gradient nearly cancel.
      if (shape.back() > 1) expect_close(x.grad(), x_plain.grad(), 3 * tolerance);
      EXPECT_EQ(gain.writes, 1);
    }
  }
}

TEST(RmsNorm, GivesTheSameBitsForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  std::vector<at::Tensor> found;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    Watched gain(numbers({128}, 1, at::kFloat), at::kFloat);
    const auto x = leaf(numbers({1000, 128}, 2, at::kFloat));
    rms_norm(x, gain.parameter, 1e-5).backward(numbers({1000, 128}, 3, at::kFloat));
    found.push_back(at::cat({gain.gradient(), x.grad().view({-1})}));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(found[0], found[1]));
  EXPECT_TRUE(at::equal(found[0], found[2]));
}

// Hugging Face's form: x · cos + rotate_half(x) · sin, with angles for both halves.
at::Tensor plain_rotary(const at::Tensor& x_BTHD, const at::Tensor& positions_BT, double theta) {
  const int64_t D = x_BTHD.size(3);
  const auto frequencies = at::pow(theta, -at::arange(0, D, 2, at::kDouble) / static_cast<double>(D));
  const auto angles = positions_BT.to(at::kDouble).unsqueeze(-1) * frequencies;
  const auto both = at::cat({angles, angles}, -1).unsqueeze(2);
  const auto halves = x_BTHD.chunk(2, -1);
  return x_BTHD * both.cos() + at::cat({-halves[1], halves[0]}, -1) * both.sin();
}

TEST(Rotary, AgreesWithAutograd) {
  const int64_t B = 2, T = 5, context = 12;
  for (const auto& [type, tolerance] : types) {
    for (const int64_t D : {2, 10, 64}) {
      for (const int64_t first : {0, 4}) {
        for (const bool packed : {false, true}) {
          const auto x = leaf(numbers({B, T, 3, D}, D, type)), x_plain = leaf(x.to(at::kDouble));
          const auto given = packed ? at::tensor({0, 1, 0, 1, 2, 3, 4, 5, 0, 0}, at::kLong).view({B, T}) : at::Tensor();
          const auto positions = packed ? given : at::arange(first, first + T).unsqueeze(0).expand({B, T});
          const auto rotations = make_rotations(context, D, 500.0, x.options());
          const auto y = rotary(x, rotations, first, given);
          const auto y_plain = plain_rotary(x_plain, positions, 500.0);
          EXPECT_EQ(y.scalar_type(), type);
          expect_close(y, y_plain, tolerance);
          const auto pull = numbers(y.sizes(), 3, type);
          y.backward(pull);
          y_plain.backward(pull.to(at::kDouble));
          expect_close(x.grad(), x_plain.grad(), tolerance);
        }
      }
    }
  }
}

TEST(Rotary, TakesAnyStridesAndNoPositionBeyondItsAngles) {
  const auto base = leaf(numbers({4, 2, 3, 2}, 1)), base_plain = leaf(base);
  const auto rotations = make_rotations(4, 4, 100.0, base.options());
  const auto positions = at::arange(3).unsqueeze(0).expand({2, 3});
  rotary(base.permute({1, 2, 3, 0}), rotations, 0, {}).sum().backward();
  plain_rotary(base_plain.permute({1, 2, 3, 0}), positions, 100.0).sum().backward();
  expect_close(base.grad(), base_plain.grad(), exact);
  EXPECT_THROW(rotary(numbers({1, 3, 1, 4}, 1), rotations, 2, {}), Error);
  EXPECT_THROW(rotary(numbers({1, 3, 1, 6}, 1), rotations, 0, {}), Error);
}

TEST(Swiglu, AgreesWithAutograd) {
  for (const auto& [type, tolerance] : types) {
    for (const int64_t count : {1, 5, 16, 37, 70'001}) {
      const auto gate = leaf(8 * numbers({count}, 1, type)), up = leaf(numbers({count}, 2, type));
      const auto gate_plain = leaf(gate.to(at::kDouble)), up_plain = leaf(up.to(at::kDouble));
      const auto y = swiglu(gate, up);
      const auto y_plain = gate_plain * at::sigmoid(gate_plain) * up_plain;
      EXPECT_EQ(y.scalar_type(), type);
      expect_close(y, y_plain, tolerance);
      const auto pull = numbers({count}, 3, type);
      y.backward(pull);
      y_plain.backward(pull.to(at::kDouble));
      expect_close(gate.grad(), gate_plain.grad(), 2 * tolerance);
      expect_close(up.grad(), up_plain.grad(), tolerance);
    }
  }
  const auto far = at::tensor({-200.f, 200.f, 0.f}), one = at::ones({3});
  EXPECT_TRUE(at::allclose(swiglu(far, one), at::tensor({0.f, 200.f, 0.f})));
}

TEST(Linears, AgreesWithAutograd) {
  for (const auto& [type, tolerance] : types) {
    for (const bool input_learns : {true, false}) {
      Watched first(numbers({6, 16}, 1, type), gradient_type(type)),
          second(numbers({3, 16}, 2, type), gradient_type(type)), third(numbers({8, 16}, 3, type), gradient_type(type));
      const ParameterList weights{first.parameter, second.parameter, third.parameter};
      const auto x = numbers({2, 5, 16}, 4, type).set_requires_grad(input_learns);
      const auto x_plain = leaf(x.to(at::kDouble));
      std::vector<at::Tensor> plain, y_plain;
      for (const auto& weight : weights) {
        plain.push_back(leaf(weight->value.to(at::kDouble)));
        y_plain.push_back(at::matmul(x_plain, plain.back().t()));
      }
      const auto y = linears(x, weights);
      ASSERT_EQ(y.size(), 3u);
      at::Tensor all, all_plain;
      for (size_t i = 0; i < 3; ++i) {
        expect_close(y[i], y_plain[i], tolerance);
        const auto pull = numbers(y[i].sizes(), 5 + static_cast<int64_t>(i));
        const auto sum = (y[i].to(at::kDouble) * pull).sum(), sum_plain = (y_plain[i] * pull).sum();
        all = all.defined() ? all + sum : sum;
        all_plain = all_plain.defined() ? all_plain + sum_plain : sum_plain;
      }
      all.backward();
      all_plain.backward();
      expect_close(first.gradient(), plain[0].grad(), tolerance);
      expect_close(second.gradient(), plain[1].grad(), tolerance);
      expect_close(third.gradient(), plain[2].grad(), tolerance);
      if (input_learns) expect_close(x.grad(), x_plain.grad(), tolerance);
      EXPECT_EQ(first.writes + second.writes + third.writes, 3);
    }
  }
}

// What is frozen gets no gradient; what lies before it still does.
TEST(Frozen, ParametersGetNoGradients) {
  Watched weight(numbers({4, 4}, 1)), bias(numbers({4}, 2)), gain(numbers({4}, 3)), shift(numbers({4}, 4));
  Watched other(numbers({4, 4}, 5)), scale(numbers({4}, 6));
  const auto freeze = [](Watched& watched) {
    watched.parameter->trained = false;
    watched.parameter->value.set_requires_grad(false);
  };
  for (auto* watched : {&weight, &gain, &other, &scale}) freeze(*watched);
  const auto x = leaf(numbers({3, 4}, 7));
  auto y = linear(x, weight.parameter, bias.parameter, WeightLayout::in_out);
  y = layer_norm(y, gain.parameter, shift.parameter);
  y = rms_norm(linears(y, {other.parameter})[0], scale.parameter, 1e-5);
  y.backward(numbers({3, 4}, 8));
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(weight.writes + gain.writes + other.writes + scale.writes, 0);
  EXPECT_EQ(bias.writes, 1);
  EXPECT_EQ(shift.writes, 1);
  // A bias that is trained beside a frozen weight, behind an input that does not learn.
  linear(numbers({3, 4}, 9), weight.parameter, bias.parameter, WeightLayout::out_in).backward(numbers({3, 4}, 8));
  EXPECT_EQ(bias.writes, 2);
}

}  // namespace
}  // namespace trireme
