#include "trireme/api/optimizers.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

namespace trireme {

ModuleOptimizer::ModuleOptimizer(ReplicatedModule& model, const OptimizerConfig& config)
    : model_(model), optimizer_(make_optimizer(config)), lr_(config.lr), clip_(config.clip) {
  for (auto& bucket : model_.store().buckets()) optimizer_->prepare(bucket);
  model_.store().account(model_.world().recorder().memory());
}

void ModuleOptimizer::step() {
  const c10::NoGradGuard no_grad;
  auto& buckets = model_.store().buckets();
  double scale = 1;
  if (clip_ > 0) {
    double squares = 0;
    for (const auto& bucket : buckets) squares += at::dot(bucket.gradients, bucket.gradients).item<double>();
    norm_ = std::sqrt(squares);
    if (norm_ > clip_) scale = clip_ / norm_;
  }
  ++updates_;
  for (auto& bucket : buckets) {
    optimizer_->update(bucket, updates_, lr_, scale);
    ParameterStore::publish(bucket);
  }
}

namespace {

OptimizerConfig config_of(const AdamWOptions& options) {
  OptimizerConfig config;
  config.kind = OptimizerKind::adamw;
  config.lr = options.lr;
  config.beta1 = options.beta1;
  config.beta2 = options.beta2;
  config.epsilon = options.epsilon;
  config.weight_decay = options.weight_decay;
  config.clip = options.clip;
  return config;
}

OptimizerConfig config_of(const SGDOptions& options) {
  OptimizerConfig config;
  config.kind = OptimizerKind::sgd;
  config.lr = options.lr;
  config.momentum = options.momentum;
  config.nesterov = options.nesterov;
  config.weight_decay = options.weight_decay;
  config.clip = options.clip;
  return config;
}

}  // namespace

AdamW::AdamW(ReplicatedModule& model, const AdamWOptions& options) : ModuleOptimizer(model, config_of(options)) {}

SGD::SGD(ReplicatedModule& model, const SGDOptions& options) : ModuleOptimizer(model, config_of(options)) {}

}  // namespace trireme
