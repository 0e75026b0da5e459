// Ten steps of two tiny models and of ResNet-18 against the same ten steps in plain PyTorch, as
// tests/nn/make_reference.py wrote them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "tests/close.h"
#include "trireme/base/safetensors.h"
#include "trireme/nn/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/store.h"

namespace trireme {
namespace {

class Reference {
 public:
  explicit Reference(const std::string& name)
      : file_(std::filesystem::path(TRIREME_SOURCE) / "tests" / "nn" / "reference" / (name + ".safetensors")) {}

  at::Tensor operator[](const std::string& name) const {
    const auto* info = file_.find(name);
    if (!info) throw std::runtime_error("the reference has no " + name);
    const auto type = info->dtype == DType::f64 ? at::kDouble : info->dtype == DType::f16 ? at::kHalf : at::kLong;
    auto tensor = at::empty(info->shape, type);
    const auto bytes = file_.bytes(*info);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }

 private:
  Safetensors file_;
};

struct Batch {
  at::Tensor inputs, targets;
};

struct Closeness {
  Precision precision = Precision::fp64;
  double losses = 1e-9, norms = 1e-9;
};

// Trains a model that has its initial values, and compares losses and norms of every step.
void expect_same_steps(const Reference& reference, Model& model, const OptimizerConfig& config, double bucket_bytes,
                       const std::function<Batch(int64_t step)>& batch_of, const Closeness& close = {}) {
  at::set_num_threads(1);
  ParameterStore store(model.parameters(), close.precision, at::kCPU, bucket_bytes,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  const auto optimizer = make_optimizer(config);
  for (auto& bucket : store.buckets()) optimizer->prepare(bucket);
  const auto losses = reference["losses"], norms = reference["norms"];
  ASSERT_EQ(losses.numel(), 10);
  for (int64_t step = 0; step < losses.numel(); ++step) {
    const auto [inputs, targets] = batch_of(step);
    Pass pass;
    pass.training = true;
    store.begin_step();
    const auto loss = cross_entropy_sum(model.forward(inputs, pass), targets) / targets.numel();
    loss.backward();
    c10::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& bucket : store.buckets()) squares += bucket.gradients.square().sum(at::kDouble).item<double>();
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(loss.item<double>() / losses[step].item<double>(), 1, close.losses) << "step " << step;
    EXPECT_NEAR(norm / norms[step].item<double>(), 1, close.norms) << "step " << step;
    for (auto& bucket : store.buckets()) {
      optimizer->update(bucket, step + 1, learning_rate(config, step + 1, losses.numel()),
                        norm > config.clip ? config.clip / norm : 1);
      ParameterStore::publish(bucket);
    }
  }
}

void expect_same_course(const Reference& reference, Model& model, const OptimizerConfig& config, double bucket_bytes) {
  {
    c10::NoGradGuard no_grad;
    model.to(at::kDouble, at::kCPU);
    for (const auto& parameter : model.parameters()) parameter->value.copy_(reference["initial." + parameter->name]);
  }
  expect_same_steps(reference, model, config, bucket_bytes, [&](int64_t step) {
    return Batch{reference[fmt::format("inputs.{}", step)], reference[fmt::format("targets.{}", step)]};
  });
  for (const auto& parameter : model.parameters()) {
    SCOPED_TRACE(parameter->name);
    expect_close(parameter->value, reference["final." + parameter->name], 1e-8);
    EXPECT_GT(distance(parameter->value, reference["initial." + parameter->name]), 1e-4);  // it was trained at all
  }
}

TEST(Reference, GptTrainsAsInPyTorch) {
  const Reference reference("gpt");
  const OptimizerConfig config{
      .kind = OptimizerKind::adamw, .lr = 1e-3, .weight_decay = 0.1, .schedule = LrSchedule::constant, .warmup = 0};
  for (const double bucket_bytes : {2000.0, 1e9}) {
    const auto model = build_model({.kind = ModelKind::gpt, .layers = 2, .width = 32, .heads = 4, .context = 16}, 64);
    expect_same_course(reference, *model, config, bucket_bytes);
  }
}

TEST(Reference, MlpTrainsAsInPyTorch) {
  const OptimizerConfig config{.kind = OptimizerKind::sgd,
                               .lr = 0.1,
                               .weight_decay = 0.1,
                               .momentum = 0.9,
                               .nesterov = true,
                               .schedule = LrSchedule::constant,
                               .warmup = 0};
  const auto model = build_model({.kind = ModelKind::mlp, .layers = 2, .width = 16, .inputs = 8, .classes = 5}, 0);
  expect_same_course(Reference("mlp"), *model, config, 1000);
}

// Numbers from -1 to 1, bit for bit those of make_reference.py; `salt` tells tensors apart.
at::Tensor noise(at::IntArrayRef shape, uint64_t salt) {
  auto tensor = at::empty(shape, at::kDouble);
  auto* place = tensor.mutable_data_ptr<double>();
  for (uint64_t i = 0; i < static_cast<uint64_t>(tensor.numel()); ++i) {
    uint64_t number = i + (salt << 32);
    for (int round = 0; round < 2; ++round) {
      number *= 0x9E3779B97F4A7C15;
      number ^= number >> 32;
    }
    number *= 0x9E3779B97F4A7C15;
    place[i] = static_cast<double>(number >> 41) * 0x1p-22 - 1;
  }
  return tensor;
}

at::Tensor resnet_weight(const std::string& name, at::IntArrayRef shape, uint64_t salt) {
  const double inputs = static_cast<double>(c10::multiply_integers(shape.slice(1)));
  const auto value = shape.size() > 1 ? noise(shape, salt) * std::sqrt(6 / inputs)
                                      : noise(shape, salt) * 0.125 + (name.ends_with(".weight") ? 1 : 0);
  return value.to(at::kFloat);
}

// PyTorch's ten steps are in fp64, and ours are the same to the last digits. In fp32 rounding errors grow from step to
// step through the BatchNorms: to 7e-6 of the tenth loss here, to 1e-4 with a batch of 4 and a rate of 0.005.
TEST(Reference, ResNet18TrainsAsInPyTorch) {
  const Reference reference("resnet18");
  const OptimizerConfig config{.kind = OptimizerKind::sgd,
                               .lr = 0.002,
                               .weight_decay = 0.1,
                               .momentum = 0.9,
                               .schedule = LrSchedule::constant,
                               .warmup = 0};
  for (const Closeness& close : {Closeness{}, {.precision = Precision::fp32, .losses = 1e-4, .norms = 2e-3}}) {
    const auto type = value_type(close.precision);
    const auto model = build_model({.kind = ModelKind::resnet18, .classes = 10, .image = 32}, 0);
    model->to(type, at::kCPU);
    std::map<std::string, ParameterPtr> by_name;
    for (const auto& parameter : model->parameters()) by_name[parameter->name] = parameter;
    {
      c10::NoGradGuard no_grad;
      uint64_t salt = 0;
      for (const auto& [name, parameter] : by_name)
        parameter->value.copy_(resnet_weight(name, parameter->value.sizes(), salt++));
    }
    expect_same_steps(
        reference, *model, config, 1e6,
        [&](int64_t step) {
          return Batch{noise({8, 3, 32, 32}, by_name.size() + static_cast<uint64_t>(step % 2)).to(type),
                       (3 * at::arange(8, at::kLong) + step % 2) % 10};
        },
        close);
    const double tolerance = close.losses;
    for (const auto* name : {"layer2.0.downsample.1.weight", "fc.bias"})
      expect_close(by_name.at(name)->value, reference[std::string("final.") + name], tolerance);
    std::map<std::string, at::Tensor> statistics;
    for (const auto& buffer : model->buffers()) statistics[buffer->name] = buffer->value;
    for (const auto* name : {"bn1.running_mean", "layer4.1.bn2.running_var"})
      expect_close(statistics[name], reference[std::string("final.") + name], tolerance);
  }
}

}  // namespace
}  // namespace trireme
