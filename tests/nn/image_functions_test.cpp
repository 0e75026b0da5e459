// Convolution and BatchNorm against autograd of torch's own operations, in fp64.
#include "trireme/nn/image_functions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>
#include <limits>
#include <thread>
#include <vector>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/nn/batch_norm.h"

namespace trireme {
namespace {

constexpr double exact = 1e-12;

// A parameter whose slot starts as garbage, so that a test sees whether a fresh write overwrites.
ParameterPtr watched(const at::Tensor& value) {
  auto parameter = std::make_shared<Parameter>();
  parameter->value = value.detach().clone().set_requires_grad(true);
  parameter->gradient.view = at::full(value.sizes(), std::numeric_limits<double>::quiet_NaN(), value.scalar_type());
  return parameter;
}

at::Tensor leaf(const at::Tensor& value) { return value.detach().clone().set_requires_grad(true); }

BatchNorm make_norm(int64_t channels, at::ScalarType type = at::kDouble) {
  BatchNorm norm;
  norm.gain = watched(numbers({channels}, 1, type));
  norm.bias = watched(numbers({channels}, 2, type));
  norm.mean = std::make_shared<Buffer>(Buffer{"running_mean", at::zeros({channels}, type)});
  norm.variance = std::make_shared<Buffer>(Buffer{"running_var", at::ones({channels}, type)});
  norm.batches = std::make_shared<Buffer>(Buffer{"num_batches_tracked", at::zeros({}, at::kLong)});
  return norm;
}

Pass training() {
  Pass pass;
  pass.training = true;
  return pass;
}

TEST(Window, CountsPlacesAsPoolingDoes) {
  for (const bool ceil : {false, true}) {
    for (const Window window : {Window{3, 2, 0}, Window{3, 2, 1}, Window{2, 2, 0}, Window{3, 1, 1}}) {
      for (int64_t length = 3; length < 12; ++length) {
        const auto pooled =
            at::max_pool2d(at::zeros({1, 1, length, length}), {window.size, window.size},
                           {window.stride, window.stride}, {window.padding, window.padding}, {1, 1}, ceil);
        EXPECT_EQ(window.places(length, ceil), pooled.size(2)) << length << " pixels, window " << window.size;
      }
    }
  }
  EXPECT_EQ((Window{3, 2, 0}).places(2, true), 1);  // hangs over the end
  EXPECT_EQ((Window{3, 2, 0}).places(2, false), 0);
}

TEST(Convolution, AgreesWithAutograd) {
  for (const Window window : {Window{3, 1, 1}, Window{3, 2, 1}, Window{1, 2, 0}, Window{5, 2, 2}}) {
    for (const bool with_bias : {false, true}) {
      for (const bool input_learns : {false, true}) {
        SCOPED_TRACE(fmt::format("window {} by {}, bias {}, input learns {}", window.size, window.stride, with_bias,
                                 input_learns));
        const auto weight_value = numbers({5, 3, window.size, window.size}, 1), bias_value = numbers({5}, 2);
        const auto weight = watched(weight_value), bias = watched(bias_value);
        const auto x = numbers({2, 3, 7, 7}, 3).set_requires_grad(input_learns);
        const auto x_plain = leaf(x), weight_plain = leaf(weight_value), bias_plain = leaf(bias_value);
        const auto y = convolution(x, weight, with_bias ? bias : nullptr, window);
        const auto y_plain =
            at::conv2d(x_plain, weight_plain, with_bias ? bias_plain : at::Tensor(), {window.stride, window.stride},
                       at::IntArrayRef({window.padding, window.padding}));
        expect_close(y, y_plain, exact);
        const auto pull = numbers(y.sizes(), 4);
        y.backward(pull);
        y_plain.backward(pull);
        expect_close(weight->gradient.view, weight_plain.grad(), exact);
        if (with_bias) expect_close(bias->gradient.view, bias_plain.grad(), exact);
        EXPECT_EQ(x.grad().defined(), input_learns);
        if (input_learns) expect_close(x.grad(), x_plain.grad(), exact);
        // A second microbatch adds.
        convolution(x, weight, with_bias ? bias : nullptr, window).backward(pull);
        expect_close(weight->gradient.view, 2 * weight_plain.grad(), exact);
      }
    }
  }
}

TEST(Convolution, CanPutOffItsWeights) {
  DeferredGradients put_off;
  const auto weight = watched(numbers({4, 3, 3, 3}, 1)), plain = watched(weight->value);
  weight->gradient.deferred = &put_off;
  const auto x = leaf(numbers({2, 3, 5, 5}, 2));
  for (const auto& one : {weight, plain}) convolution(x, one, nullptr, {3, 1, 1}).sum().backward();
  EXPECT_TRUE(weight->gradient.fresh);
  EXPECT_EQ(put_off.writes.size(), 1u);
  put_off.compute(0, put_off.writes.size());
  EXPECT_TRUE(at::equal(weight->gradient.view, plain->gradient.view));
}

// relu(BatchNorm(x) + residual) by torch, with its running averages.
struct Plain {
  at::Tensor x, residual, gain, bias, mean, variance, y;

  Plain(const at::Tensor& input, const at::Tensor& added, const BatchNorm& norm, bool relu)
      : x(leaf(input)), gain(leaf(norm.gain->value)), bias(leaf(norm.bias->value)) {
    mean = at::zeros_like(norm.mean->value);
    variance = at::ones_like(mean);
    y = at::batch_norm(x, gain, bias, mean, variance, true, norm.momentum, norm.epsilon, false);
    if (added.defined()) y = y + (residual = leaf(added));
    if (relu) y = at::relu(y);
  }
};

TEST(BatchNorm, AgreesWithAutograd) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const double tolerance = type == at::kDouble ? exact : 1e-5;
    for (const bool relu : {false, true}) {
      for (const bool adds : {false, true}) {
        for (const int64_t channels : {1, 7, 64}) {
          SCOPED_TRACE(fmt::format("relu {}, residual {}, {} channels", relu, adds, channels));
          auto norm = make_norm(channels, type);
          // Far from zero, and more than one block of rows.
          const auto x = leaf(numbers({3, channels, 32, 32}, 3, type) * 2 + 5);
          const auto residual = adds ? leaf(numbers(x.sizes(), 4, type)) : at::Tensor();
          Plain plain(x, residual, norm, relu);
          const auto y = batch_norm(x, norm, training(), relu, residual);
          expect_close(y, plain.y, tolerance);
          expect_close(norm.mean->value, plain.mean, tolerance);
          expect_close(norm.variance->value, plain.variance, tolerance);
          EXPECT_EQ(norm.batches->value.item<int64_t>(), 1);
          const auto pull = numbers(y.sizes(), 5, type);
          y.backward(pull);
          plain.y.backward(pull);
          expect_close(x.grad(), plain.x.grad(), 20 * tolerance);
          expect_close(norm.gain->gradient.view, plain.gain.grad(), 20 * tolerance);
          expect_close(norm.bias->gradient.view, plain.bias.grad(), 20 * tolerance);
          if (adds) expect_close(residual.grad(), plain.residual.grad(), tolerance);
        }
      }
    }
  }
}

TEST(BatchNorm, UsesTheRunningAveragesInEvaluation) {
  auto norm = make_norm(4);
  norm.mean->value.copy_(numbers({4}, 6));
  norm.variance->value.copy_(numbers({4}, 7).square() + 0.5);
  const auto x = numbers({2, 4, 3, 3}, 3), before = norm.mean->value.clone();
  const auto y = batch_norm(x, norm, Pass{}, true, x);
  const auto column = [](const at::Tensor& tensor) { return tensor.detach().view({1, -1, 1, 1}); };
  const auto expected = at::relu((x - column(norm.mean->value)) / (column(norm.variance->value) + 1e-5).sqrt() *
                                     column(norm.gain->value) +
                                 column(norm.bias->value) + x);
  expect_close(y, expected, exact);
  EXPECT_TRUE(at::equal(norm.mean->value, before));
}

TEST(BatchNorm, RefusesASingleElement) {
  const auto norm = make_norm(3);
  EXPECT_THROW(batch_norm(at::ones({1, 3, 1, 1}, at::kDouble), norm, training(), false), Error);
}

// Replicas as threads that hand each other what they give.
class Replicas {
 public:
  explicit Replicas(int count) : barrier_(count), given_(static_cast<size_t>(count)) {}

  GatherReplicas gather(size_t replica) {
    return [this, replica](const at::Tensor& given) {
      given_[replica] = given.clone();
      barrier_.arrive_and_wait();
      auto all = at::stack(given_);
      barrier_.arrive_and_wait();
      return all;
    };
  }

 private:
  std::barrier<> barrier_;
  std::vector<at::Tensor> given_;
};

// Uneven shares, one of them empty: outputs, gradients and running averages are those of the whole microbatch.
TEST(BatchNorm, IsThatOfAllReplicas) {
  const auto x = numbers({7, 6, 4, 4}, 3) + 2, pull = numbers(x.sizes(), 5), residual = numbers(x.sizes(), 6);
  for (const bool adds : {false, true}) {
    auto whole = make_norm(6);
    Plain plain(x, adds ? residual : at::Tensor(), whole, true);
    plain.y.backward(pull);

    const std::vector<int64_t> firsts{0, 4, 4, 7};
    Replicas replicas(3);
    std::vector<BatchNorm> norms;
    for (int r = 0; r < 3; ++r) norms.push_back(make_norm(6));
    std::vector<at::Tensor> outputs(3), gradients(3);
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        const auto part = [&](const at::Tensor& of) { return of.slice(0, firsts[r], firsts[r + 1]); };
        const auto gather = replicas.gather(r);
        auto pass = training();
        pass.replicas = &gather;
        const auto mine = leaf(part(x));
        outputs[r] = batch_norm(mine, norms[r], pass, true, adds ? part(residual) : at::Tensor());
        outputs[r].backward(part(pull));
        gradients[r] = mine.grad();
      });
    }
    for (auto& thread : threads) thread.join();
    expect_close(at::cat(outputs), plain.y, exact);
    expect_close(at::cat(gradients), plain.x.grad(), exact);
    at::Tensor gain_gradient = at::zeros({6}, at::kDouble), bias_gradient = at::zeros({6}, at::kDouble);
    for (const auto& norm : norms) {
      gain_gradient += norm.gain->gradient.view;
      bias_gradient += norm.bias->gradient.view;
      expect_close(norm.mean->value, plain.mean, exact);
      expect_close(norm.variance->value, plain.variance, exact);
      EXPECT_TRUE(at::equal(norm.variance->value, norms[0].variance->value));  // to the last bit
    }
    expect_close(gain_gradient, plain.gain.grad(), exact);
    expect_close(bias_gradient, plain.bias.grad(), exact);
  }
}

}  // namespace
}  // namespace trireme
