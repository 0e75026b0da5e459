#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "tests/close.h"

namespace trireme {
namespace {

// A store of one matrix, which decays, and one vector, which does not.
struct Fixture {
  ParameterPtr matrix = std::make_shared<Parameter>(), vector = std::make_shared<Parameter>();
  std::unique_ptr<ParameterStore> store;

  explicit Fixture(Precision precision) {
    at::set_num_threads(1);  // waking threads for a few elements is all that these tests would spend time on
    matrix->name = "matrix";
    matrix->value = numbers({5, 7}, 1);
    vector->name = "vector";
    vector->value = numbers({9}, 2);
    vector->kind = ParameterKind::vector;
    store = std::make_unique<ParameterStore>(ParameterList{matrix, vector}, precision, at::kCPU, 1e9,
                                             [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  }

  Bucket& bucket() { return store->buckets().at(0); }
  void set_gradients(int64_t step) {
    matrix->gradient.view.copy_(numbers({5, 7}, 10 + step));
    vector->gradient.view.copy_(numbers({9}, 20 + step));
  }
};

double scale_of(int64_t step) { return step % 3 == 0 ? 0.3 : 1; }  // some steps are clipped
double lr_of(int64_t step) { return 0.01 / static_cast<double>(step); }

// AdamW as its paper has it, one element at a time.
struct ExplicitAdamW {
  OptimizerConfig config;
  std::vector<double> first, second;

  void update(std::vector<double>& values, const std::vector<double>& gradients, int64_t step, double lr, double scale,
              double decay) {
    first.resize(values.size());
    second.resize(values.size());
    const auto t = static_cast<double>(step);
    for (size_t i = 0; i < values.size(); ++i) {
      const double g = gradients[i] * scale;
      values[i] -= lr * decay * values[i];
      first[i] = config.beta1 * first[i] + (1 - config.beta1) * g;
      second[i] = config.beta2 * second[i] + (1 - config.beta2) * g * g;
      const double mean = first[i] / (1 - std::pow(config.beta1, t)),
                   square = second[i] / (1 - std::pow(config.beta2, t));
      values[i] -= lr * mean / (std::sqrt(square) + config.epsilon);
    }
  }
};

// SGD as torch documents it: the momentum buffer starts as the first gradient.
struct ExplicitSgd {
  OptimizerConfig config;
  std::vector<double> momentum;

  void update(std::vector<double>& values, const std::vector<double>& gradients, int64_t step, double lr, double scale,
              double decay) {
    momentum.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double g = gradients[i] * scale + decay * values[i];
      momentum[i] = step == 1 ? g : config.momentum * momentum[i] + g;
      const double direction = config.momentum == 0 ? g
                               : config.nesterov    ? g + config.momentum * momentum[i]
                                                    : momentum[i];
      values[i] -= lr * direction;
    }
  }
};

std::vector<double> flat(const at::Tensor& tensor) {
  const auto wide = tensor.detach().to(at::kDouble).contiguous().view({-1});
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

template <class Explicit>
void expect_follows(const OptimizerConfig& config, Precision precision, double tolerance) {
  c10::NoGradGuard no_grad;
  Fixture fixture(precision);
  auto& bucket = fixture.bucket();
  const auto optimizer = make_optimizer(config);
  optimizer->prepare(bucket);
  Explicit matrix_rule{config}, vector_rule{config};
  auto matrix = flat(fixture.matrix->value), vector = flat(fixture.vector->value);
  for (int64_t step = 1; step <= 20; ++step) {
    fixture.set_gradients(step);
    matrix_rule.update(matrix, flat(fixture.matrix->gradient.view), step, lr_of(step), scale_of(step),
                       config.weight_decay);
    vector_rule.update(vector, flat(fixture.vector->gradient.view), step, lr_of(step), scale_of(step), 0);
    optimizer->update(bucket, step, lr_of(step), scale_of(step));
    ParameterStore::publish(bucket);
    expect_close(fixture.matrix->value.view({-1}), at::tensor(matrix, at::kDouble), tolerance);
    expect_close(fixture.vector->value.view({-1}), at::tensor(vector, at::kDouble), tolerance);
  }
}

TEST(AdamW, FollowsItsFormula) {
  for (const double decay : {0.0, 0.5}) {
    const OptimizerConfig config{
        .kind = OptimizerKind::adamw, .weight_decay = decay, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3};
    expect_follows<ExplicitAdamW>(config, Precision::fp64, 1e-12);
    expect_follows<ExplicitAdamW>(config, Precision::fp32, 1e-6);
  }
}

TEST(Sgd, FollowsItsFormula) {
  for (const double decay : {0.0, 0.5}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;  // refused by the configuration
        const OptimizerConfig config{
            .kind = OptimizerKind::sgd, .weight_decay = decay, .momentum = momentum, .nesterov = nesterov};
        expect_follows<ExplicitSgd>(config, Precision::fp64, 1e-12);
        expect_follows<ExplicitSgd>(config, Precision::fp32, 1e-6);
      }
    }
  }
}

// Between bf16 values and an fp32 master small updates add up that bf16 would lose one by one.
TEST(Optimizers, AddUpSmallUpdatesOfBf16Values) {
  c10::NoGradGuard no_grad;
  Fixture fixture(Precision::bf16);
  auto& bucket = fixture.bucket();
  const auto optimizer = make_optimizer({.kind = OptimizerKind::sgd, .weight_decay = 0, .momentum = 0});
  optimizer->prepare(bucket);
  bucket.master.fill_(1);
  for (int64_t step = 1; step <= 100; ++step) {
    bucket.gradients.fill_(1);
    optimizer->update(bucket, step, 1e-3, 1);  // a bf16 near 1 moves in steps of 1/256
    ParameterStore::publish(bucket);
  }
  EXPECT_NEAR(fixture.vector->value[0].item<double>(), 0.9, 0.004);
}

TEST(Optimizers, KeepOnlyTheStateTheyNeed) {
  const auto names_of = [](const OptimizerConfig& config) {
    Fixture fixture(Precision::fp32);
    make_optimizer(config)->prepare(fixture.bucket());
    std::vector<std::string> names;
    for (const auto& [name, tensor] : fixture.bucket().state) {
      EXPECT_EQ(tensor.abs().max().item<double>(), 0);
      EXPECT_EQ(tensor.sizes(), fixture.bucket().master.sizes());
      names.push_back(name);
    }
    return names;
  };
  EXPECT_EQ(names_of({.kind = OptimizerKind::adamw}), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names_of({.kind = OptimizerKind::sgd, .momentum = 0.9}), (std::vector<std::string>{"momentum_buffer"}));
  EXPECT_TRUE(names_of({.kind = OptimizerKind::sgd, .momentum = 0}).empty());
}

// The padding between parameters stays zero, so it never counts in a norm.
TEST(Optimizers, LeaveThePaddingAtZero) {
  c10::NoGradGuard no_grad;
  for (const auto kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    Fixture fixture(Precision::fp64);
    auto& bucket = fixture.bucket();
    const auto optimizer = make_optimizer({.kind = kind});
    optimizer->prepare(bucket);
    for (int64_t step = 1; step <= 5; ++step) {
      fixture.set_gradients(step);
      optimizer->update(bucket, step, 0.1, 0.5);
    }
    EXPECT_EQ(bucket.master.narrow(0, 35, 13).abs().max().item<double>(), 0);
    EXPECT_EQ(bucket.master.narrow(0, 48 + 9, 7).abs().max().item<double>(), 0);
  }
}

OptimizerConfig course(LrSchedule schedule, int64_t warmup, double final_lr = 0.1) {
  return {.lr = 2, .schedule = schedule, .warmup = warmup, .final_lr = final_lr};
}

TEST(LearningRate, RisesLinearlyInTheWarmup) {
  for (const auto schedule : {LrSchedule::constant, LrSchedule::cosine, LrSchedule::linear}) {
    EXPECT_DOUBLE_EQ(learning_rate(course(schedule, 10), 1, 100), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(course(schedule, 10), 5, 100), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(course(schedule, 10), 10, 100), 2.0);
  }
}

TEST(LearningRate, FollowsItsSchedule) {
  for (const int64_t warmup : {0, 20}) {
    const int64_t steps = 100 + warmup, quarter = warmup + 25, half = warmup + 50;
    for (const int64_t step : {warmup + 1, half, steps})
      EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::constant, warmup), step, steps), 2);
    EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::linear, warmup), half, steps), 2 * 0.55);
    EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::linear, warmup), steps, steps), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::cosine, warmup), half, steps), 2 * 0.55);
    EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::cosine, warmup), quarter, steps),
                     2 * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi / 4)) / 2));
    EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::cosine, warmup), steps, steps), 0.2);
    EXPECT_NEAR(learning_rate(course(LrSchedule::cosine, warmup, 0), steps, steps), 0, 1e-15);
  }
}

// A run that was made longer than it was, or a default warm-up in a short run.
TEST(LearningRate, TakesAWarmupAsLongAsTheRunOrLonger) {
  for (const auto schedule : {LrSchedule::constant, LrSchedule::cosine, LrSchedule::linear}) {
    for (int64_t step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(course(schedule, 20), step, 10), 0.1 * static_cast<double>(step));
    }
    EXPECT_DOUBLE_EQ(learning_rate(course(schedule, 10), 10, 10), 2);
  }
  EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::cosine, 0), 500, 100), 0.2);  // past the end it stays
  EXPECT_DOUBLE_EQ(learning_rate(course(LrSchedule::linear, 0), 500, 100), 0.2);
}

}  // namespace
}  // namespace trireme
