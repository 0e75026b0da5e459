#include "trireme/nn/functions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/close.h"
#include "tests/nn/watched.h"
#include "trireme/nn/product.h"

namespace trireme {
namespace {

struct LinearCase {
  std::vector<int64_t> shape;
  WeightLayout layout;
  bool with_bias, input_learns;
};

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const auto layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    for (const bool with_bias : {false, true}) {
      for (const bool input_learns : {false, true}) {
        cases.push_back({{5, 4}, layout, with_bias, input_learns});
        cases.push_back({{2, 3, 4}, layout, with_bias, input_learns});
      }
    }
  }
  return cases;
}

TEST(Linear, AgreesWithAutograd) {
  for (const auto& one : linear_cases()) {
    SCOPED_TRACE(fmt::format("{} dims, layout {}, bias {}, input learns {}", one.shape.size(),
                             static_cast<int>(one.layout), one.with_bias, one.input_learns));
    const bool in_out = one.layout == WeightLayout::in_out;
    const auto weight_value = numbers(in_out ? at::IntArrayRef{4, 6} : at::IntArrayRef{6, 4}, 1),
               bias_value = numbers({6}, 2);
    Watched weight(weight_value), bias(bias_value);
    const auto x = numbers(one.shape, 3).set_requires_grad(one.input_learns);
    const auto x_plain = leaf(x), weight_plain = leaf(weight_value), bias_plain = leaf(bias_value);

    const auto y = linear(x, weight.parameter, one.with_bias ? bias.parameter : nullptr, one.layout);
    auto y_plain = at::matmul(x_plain, in_out ? weight_plain : weight_plain.t());
    if (one.with_bias) y_plain = y_plain + bias_plain;
    expect_close(y, y_plain, exact);

    const auto pull = numbers(y.sizes(), 4);
    y.backward(pull);
    y_plain.backward(pull);
    expect_close(weight.gradient(), weight_plain.grad(), exact);
    EXPECT_EQ(weight.writes, 1);
    EXPECT_EQ(bias.writes, one.with_bias ? 1 : 0);
    if (one.with_bias) expect_close(bias.gradient(), bias_plain.grad(), exact);
    if (one.input_learns) expect_close(x.grad(), x_plain.grad(), exact);
    EXPECT_EQ(x.grad().defined(), one.input_learns);
    EXPECT_FALSE(weight.parameter->value.grad().defined());  // the slot is the only place a gradient goes to
  }
}

// Inputs and gradients of any strides: a transposed input, and the expanded gradient that sum() hands back.
TEST(Linear, TakesAnyStrides) {
  Watched weight(numbers({4, 6}, 1)), bias(numbers({6}, 2));
  const auto base = leaf(numbers({4, 3, 2}, 3)), base_plain = leaf(base);
  const auto weight_plain = leaf(weight.parameter->value);
  linear(base.permute({2, 1, 0}), weight.parameter, bias.parameter, WeightLayout::in_out).sum().backward();
  at::matmul(base_plain.permute({2, 1, 0}), weight_plain).sum().backward();
  expect_close(base.grad(), base_plain.grad(), exact);
  expect_close(weight.gradient(), weight_plain.grad(), exact);
  expect_close(bias.gradient(), at::full({6}, 6.0, at::kDouble), exact);
}

TEST(Linear, OverwritesFreshSlotsAndAddsToOthers) {
  for (const auto layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    Watched weight(numbers({4, 4}, 1)), bias(numbers({4}, 2));
    const auto pass = [&](int64_t salt) {
      const auto x = numbers({3, 4}, salt);
      linear(x, weight.parameter, bias.parameter, layout).backward(x);
    };
    pass(1);
    const auto weight_once = weight.gradient().clone(), bias_once = bias.gradient().clone();
    pass(1);
    expect_close(weight.gradient(), 2 * weight_once, exact);
    expect_close(bias.gradient(), 2 * bias_once, exact);
    weight.parameter->gradient.fresh = bias.parameter->gradient.fresh = true;
    pass(2);
    const auto x = numbers({3, 4}, 2);
    expect_close(weight.gradient(), x.t().mm(x), exact);
    expect_close(bias.gradient(), x.sum(0), exact);
    EXPECT_EQ(weight.writes, 3);
    EXPECT_EQ(bias.writes, 3);
  }
}

TEST(Linear, PutsWeightGradientsOffUntilTheyAreAskedFor) {
  Watched weight(numbers({4, 6}, 1)), bias(numbers({6}, 2));
  DeferredGradients deferred;
  const auto x = numbers({3, 4}, 3).set_requires_grad(true), pull = numbers({3, 6}, 4);
  weight.parameter->gradient.deferred = bias.parameter->gradient.deferred = &deferred;
  // Through another layer, so that what is kept has a graph behind it.
  linear(x * 2, weight.parameter, bias.parameter, WeightLayout::in_out).backward(pull);
  expect_close(x.grad(), 2 * pull.mm(weight.parameter->value.detach().t()), exact);
  EXPECT_EQ(weight.writes + bias.writes, 0);
  for (int pass = 1; pass <= 2; ++pass) {
    deferred.compute(0, deferred.writes.size());
    for (const auto& write : deferred.writes) EXPECT_FALSE(write.left.defined() || write.right.defined());
    EXPECT_EQ(deferred.bytes(), 0);
    deferred.writes.clear();
    EXPECT_EQ(weight.writes, pass);
    EXPECT_EQ(bias.writes, pass);
    expect_close(weight.gradient(), pass * 2 * x.detach().t().mm(pull), exact);
    expect_close(bias.gradient(), pass * pull.sum(0), exact);
    linear(x * 2, weight.parameter, bias.parameter, WeightLayout::in_out).backward(pull);
  }
}

TEST(Linear, KeepsGradientsOfBf16ValuesInFp32) {
  for (const auto layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    Watched weight(numbers({8, 8}, 1, at::kBFloat16), at::kFloat), bias(numbers({8}, 2, at::kBFloat16), at::kFloat);
    const auto x = numbers({2, 16, 8}, 3, at::kBFloat16).set_requires_grad(true);
    const auto x_plain = leaf(x.to(at::kDouble)), weight_plain = leaf(weight.parameter->value.to(at::kDouble));
    const auto y = linear(x, weight.parameter, bias.parameter, layout);
    const auto y_plain = at::matmul(x_plain, layout == WeightLayout::in_out ? weight_plain : weight_plain.t()) +
                         bias.parameter->value.to(at::kDouble);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_close(y, y_plain, 5e-3);
    const auto pull = numbers(y.sizes(), 4, at::kBFloat16);
    for (int pass = 1; pass <= 3; ++pass) {
      linear(x, weight.parameter, bias.parameter, layout).backward(pull);
      y_plain.backward(pull.to(at::kDouble), /*retain_graph=*/true);
      EXPECT_EQ(weight.gradient().scalar_type(), at::kFloat);
      expect_close(weight.gradient(), weight_plain.grad(), 5e-3);
      // Column sums accumulate in the slot's type: only the inputs were rounded.
      expect_close(bias.gradient(), pass * pull.to(at::kDouble).sum(at::IntArrayRef{0, 1}), 1e-6);
    }
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
    expect_close(x.grad(), x_plain.grad(), 1e-2);
  }
}

TEST(Embedding, AgreesWithAutograd) {
  const auto ids = at::tensor({3, 0, 3, 3, 1, 0}, at::kLong).view({2, 3});  // repeated ids share a row's gradient
  Watched table(numbers({5, 4}, 1));
  const auto plain = leaf(table.parameter->value);
  const auto pull = numbers({2, 3, 4}, 2);
  const auto y = embedding(ids, table.parameter), y_plain = at::embedding(plain, ids);
  EXPECT_TRUE(at::equal(y, y_plain));
  y.backward(pull);
  y_plain.backward(pull);
  expect_close(table.gradient(), plain.grad(), exact);
  EXPECT_TRUE(at::equal(table.gradient()[4], at::zeros({4}, at::kDouble)));  // a row that no id named
  EXPECT_EQ(table.writes, 1);

  embedding(ids, table.parameter).backward(pull);
  expect_close(table.gradient(), 2 * plain.grad(), exact);
  EXPECT_EQ(table.writes, 2);
}

TEST(Embedding, KeepsGradientsOfBf16ValuesInFp32) {
  Watched table(numbers({3, 4}, 1, at::kBFloat16), at::kFloat);
  const auto ids = at::zeros({1, 300}, at::kLong);
  embedding(ids, table.parameter).backward(at::ones({1, 300, 4}, at::kBFloat16));
  EXPECT_TRUE(at::equal(table.gradient()[0], at::full({4}, 300.0, at::kFloat)));  // bf16 would have stopped at 256
}

// The head of a GPT uses the embedding's table again: two writes, one gradient.
TEST(Embedding, SharesItsTableWithALinear) {
  Watched table(numbers({5, 4}, 1));
  const auto plain = leaf(table.parameter->value);
  const auto ids = at::tensor({1, 4, 2}, at::kLong).view({1, 3});
  const auto pull = numbers({1, 3, 5}, 2);
  linear(embedding(ids, table.parameter), table.parameter, nullptr, WeightLayout::out_in).backward(pull);
  at::matmul(at::embedding(plain, ids), plain.t()).backward(pull);
  expect_close(table.gradient(), plain.grad(), exact);
  EXPECT_EQ(table.writes, 2);
}

TEST(LayerNorm, AgreesWithAutograd) {
  for (const bool input_learns : {false, true}) {
    for (const auto& shape : {std::vector<int64_t>{5, 6}, std::vector<int64_t>{2, 3, 6}}) {
      Watched gain(numbers({6}, 1)), bias(numbers({6}, 2));
      const auto x = numbers(shape, 3).set_requires_grad(input_learns);
      const auto x_plain = leaf(x), gain_plain = leaf(gain.parameter->value), bias_plain = leaf(bias.parameter->value);
      const double epsilon = 1e-3;  // large enough to be seen
      const auto y = layer_norm(x, gain.parameter, bias.parameter, epsilon);
      const auto centred = x_plain - x_plain.mean(-1, true);
      const auto y_plain = centred / (centred.pow(2).mean(-1, true) + epsilon).sqrt() * gain_plain + bias_plain;
      expect_close(y, y_plain, exact);
      const auto pull = numbers(shape, 4);
      y.backward(pull);
      y_plain.backward(pull);
      expect_close(gain.gradient(), gain_plain.grad(), exact);
      expect_close(bias.gradient(), bias_plain.grad(), exact);
      EXPECT_EQ(x.grad().defined(), input_learns);
      if (input_learns) expect_close(x.grad(), x_plain.grad(), 1e-12);
      layer_norm(x, gain.parameter, bias.parameter, epsilon).backward(pull);
      expect_close(gain.gradient(), 2 * gain_plain.grad(), exact);
      expect_close(bias.gradient(), 2 * bias_plain.grad(), exact);
      EXPECT_EQ(gain.writes, 2);
      EXPECT_EQ(bias.writes, 2);
    }
  }
}

TEST(LayerNorm, KeepsGradientsOfBf16ValuesInFp32) {
  Watched gain(numbers({8}, 1, at::kBFloat16), at::kFloat), bias(numbers({8}, 2, at::kBFloat16), at::kFloat);
  const auto x = numbers({3, 5, 8}, 3, at::kBFloat16), pull = numbers({3, 5, 8}, 4, at::kBFloat16);
  const auto gain_plain = leaf(gain.parameter->value.to(at::kDouble));
  at::layer_norm(x.to(at::kDouble), {8}, gain_plain, bias.parameter->value.to(at::kDouble))
      .backward(pull.to(at::kDouble));
  const auto y = layer_norm(x, gain.parameter, bias.parameter);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.backward(pull);
  EXPECT_EQ(gain.gradient().scalar_type(), at::kFloat);
  expect_close(gain.gradient(), gain_plain.grad(), 1e-2);
  expect_close(bias.gradient(), pull.to(at::kDouble).sum(at::IntArrayRef{0, 1}), 1e-2);
}

TEST(Product, IsTheSameInEveryTypeAndStride) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, exact}, {at::kFloat, 1e-6}, {at::kBFloat16, 5e-3}}) {
    for (const bool transposed : {false, true}) {
      const auto x = numbers({7, 5}, 1, type), bias = numbers({3}, 3, type);
      const auto matrix = transposed ? numbers({3, 5}, 2, type).t() : numbers({5, 3}, 2, type);
      const auto plain = x.to(at::kDouble).mm(matrix.to(at::kDouble));
      expect_close(product(x, matrix), plain, tolerance);
      expect_close(product(x, matrix, bias), plain + bias.to(at::kDouble), tolerance);
      EXPECT_EQ(product(x, matrix).scalar_type(), type);
      EXPECT_TRUE(product(x, matrix).is_contiguous());
    }
  }
  EXPECT_EQ(product(at::empty({0, 5}, at::kFloat), numbers({5, 3}, 1, at::kFloat)).size(0), 0);
}

TEST(Product, WritesIntoItsTargetOrAddsToIt) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, exact}, {at::kFloat, 1e-6}}) {
    for (const auto& [m, k, n] : {std::tuple{7, 5, 3}, {1, 5, 3}, {7, 1, 3}, {7, 5, 1}, {1, 1, 1}, {7, 0, 3}}) {
      for (const bool transposed : {false, true}) {
        const auto left = transposed ? numbers({k, m}, 1, type).t() : numbers({m, k}, 1, type);
        const auto right = numbers({k, n}, 2, type), start = numbers({m * n}, 3, type);
        const auto plain = left.to(at::kDouble).mm(right.to(at::kDouble));
        // A piece of a larger buffer, as a gradient is of its bucket.
        const auto buffer = at::cat({start, start, start});
        const auto target = buffer.narrow(0, m * n, m * n).view({m, n});
        product_into(target, left, right, /*add=*/true);
        expect_close(target, plain + start.view({m, n}).to(at::kDouble), tolerance);
        product_into(target, left, right, /*add=*/false);
        expect_close(target, plain, tolerance);
        EXPECT_TRUE(at::equal(buffer.narrow(0, 0, m * n), start));
        EXPECT_TRUE(at::equal(buffer.narrow(0, 2 * m * n, m * n), start));
      }
    }
  }
}

// In fp32 on the CPU the forward pass goes through oneDNN: it must train like the rest.
TEST(Linear, AgreesWithAutogradInFp32) {
  for (const auto layout : {WeightLayout::in_out, WeightLayout::out_in}) {
    Watched weight(numbers({16, 16}, 1, at::kFloat), at::kFloat), bias(numbers({16}, 2, at::kFloat), at::kFloat);
    const auto x = leaf(numbers({9, 16}, 3, at::kFloat));
    const auto x_plain = leaf(x.to(at::kDouble)), weight_plain = leaf(weight.parameter->value.to(at::kDouble));
    const auto pull = numbers({9, 16}, 4);
    const auto y = linear(x, weight.parameter, bias.parameter, layout);
    const auto y_plain = at::matmul(x_plain, layout == WeightLayout::in_out ? weight_plain : weight_plain.t()) +
                         bias.parameter->value.to(at::kDouble);
    expect_close(y, y_plain, 1e-6);
    y.backward(pull.to(at::kFloat));
    y_plain.backward(pull);
    expect_close(weight.gradient(), weight_plain.grad(), 1e-6);
    expect_close(bias.gradient(), pull.sum(0), 1e-6);
    expect_close(x.grad(), x_plain.grad(), 1e-6);
  }
}

// Our own kernel for fp32: whole registers and a rest, small values, and those where the exponential overflows.
TEST(Gelu, AgreesWithTorch) {
  auto special = at::tensor({0.f, -0.f, 1e-20f, -5.5f, 9.f, -13.f, 30.f, -30.f, 1e6f, -1e6f, 1e18f, -1e18f});
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const int64_t count : {1, 5, 16, 37, 1000, 70'001}) {
      const auto x = leaf(at::cat({at::linspace(-8, 8, count), special}).to(type));
      const auto reference = leaf(x.to(at::kDouble));  // in fp32 torch's own form loses the small values of negative x
      const auto gradient = at::linspace(-2, 3, x.numel()).to(type);
      gelu_tanh(x).backward(gradient);
      at::gelu(reference, "tanh").backward(gradient.to(at::kDouble));
      const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a.to(at::kDouble) - b).abs() / (b.abs() + 1)).max().item<double>();
      };
      EXPECT_LE(difference(gelu_tanh(x.detach()), at::gelu(reference.detach(), "tanh")), 1e-6);
      EXPECT_LE(difference(x.grad(), reference.grad()), 2e-6);
    }
  }
  EXPECT_TRUE(std::isnan(gelu_tanh(at::full({3}, std::nanf(""))).sum().item<float>()));
}

TEST(Gelu, TakesWhatIsNotContiguous) {
  const auto whole = at::linspace(-4, 4, 60).view({6, 10});
  EXPECT_LE((gelu_tanh(whole.t()) - at::gelu(whole.t(), "tanh")).abs().max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace trireme
