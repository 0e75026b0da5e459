// Ten steps of two tiny models against the same ten steps in plain PyTorch, as tests/nn/make_reference.py wrote them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
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

void expect_same_course(const Reference& reference, Model& model, const OptimizerConfig& config, double bucket_bytes) {
  at::set_num_threads(1);
  {
    c10::NoGradGuard no_grad;
    for (const auto& parameter : model.parameters()) parameter->value.copy_(reference["initial." + parameter->name]);
  }
  ParameterStore store(model.parameters(), Precision::fp64, at::kCPU, bucket_bytes,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  const auto optimizer = make_optimizer(config);
  for (auto& bucket : store.buckets()) optimizer->prepare(bucket);
  const auto losses = reference["losses"], norms = reference["norms"];
  for (int64_t step = 0; step < losses.numel(); ++step) {
    const auto inputs = reference[fmt::format("inputs.{}", step)], targets = reference[fmt::format("targets.{}", step)];
    Pass pass;
    pass.training = true;
    store.begin_step();
    const auto loss = cross_entropy_sum(model.forward(inputs, pass), targets) / targets.numel();
    loss.backward();
    c10::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& bucket : store.buckets()) squares += bucket.gradients.square().sum().item<double>();
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(loss.item<double>() / losses[step].item<double>(), 1, 1e-9) << "step " << step;
    EXPECT_NEAR(norm / norms[step].item<double>(), 1, 1e-9) << "step " << step;
    for (auto& bucket : store.buckets()) {
      optimizer->update(bucket, step + 1, learning_rate(config, step + 1, losses.numel()),
                        norm > config.clip ? config.clip / norm : 1);
      ParameterStore::publish(bucket);
    }
  }
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

}  // namespace
}  // namespace trireme
