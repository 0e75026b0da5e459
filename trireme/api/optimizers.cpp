#include "trireme/api/optimizers.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {

ModuleOptimizer::ModuleOptimizer(ReplicatedModule& model, const OptimizerConfig& config)
    : model_(model), optimizer_(make_optimizer(config)), lr_(config.lr), clip_(config.clip) {
  for (auto& bucket : model_.store().buckets()) optimizer_->prepare(bucket);
  model_.gradients().expect_used();
}

// Those elements whose parameters have gradients. Each parameter counts its own updates.
std::vector<UpdateRun> ModuleOptimizer::runs_of(const Bucket& bucket) {
  std::vector<UpdateRun> runs;
  for (size_t i = 0; i < bucket.parameters.size(); ++i) {
    const auto& stored = bucket.parameters[i];
    if (!stored.parameter->value.grad().defined()) continue;
    const int64_t end = i + 1 < bucket.parameters.size() ? bucket.parameters[i + 1].offset : bucket.elements;
    const UpdateRun run{.first = stored.offset,
                        .size = end - stored.offset,
                        .decays = stored.offset < bucket.decaying,
                        .step = ++updates_of_[stored.parameter->name]};
    if (!runs.empty() && runs.back().first + runs.back().size == run.first && runs.back().decays == run.decays &&
        runs.back().step == run.step) {
      runs.back().size += run.size;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

void ModuleOptimizer::step() {
  const c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::working);
  if (model_.accumulates())
    refuse(
        "step() after accumulate(): the gradients are this rank's own; the last part of a batch goes through "
        "backward()");
  model_.follow_module();
  auto& gradients = model_.gradients();
  gradients.take();
  ++updates_;
  for (size_t i = 0; i < model_.parameters().size(); ++i) {
    if (!gradients.has()[i]) model_.parameters()[i]->gradient.view.zero_();  // in the norm it counts nothing
  }
  auto& buckets = model_.store().buckets();
  double scale = 1;
  if (clip_ > 0) {
    double squares = 0;
    for (const auto& bucket : buckets) squares += at::dot(bucket.gradients, bucket.gradients).item<double>();
    norm_ = std::sqrt(squares);
    if (norm_ > clip_) scale = clip_ / norm_;
  }
  for (auto& bucket : buckets) {
    optimizer_->update_runs(bucket, runs_of(bucket), lr_, scale);
    ParameterStore::publish(bucket);
  }
  gradients.used();
}

std::map<std::string, int64_t> ModuleOptimizer::left_out() const {
  std::map<std::string, int64_t> left_out;
  for (const auto& parameter : model_.parameters()) {
    const auto own = updates_of_.find(parameter->name);
    const int64_t missed = updates_ - (own == updates_of_.end() ? 0 : own->second);
    if (missed > 0) left_out[parameter->name] = missed;
  }
  return left_out;
}

void ModuleOptimizer::set_updates(int64_t updates, const std::map<std::string, int64_t>& left_out) {
  updates_ = updates;
  updates_of_.clear();
  for (const auto& parameter : model_.parameters()) updates_of_[parameter->name] = updates;
  for (const auto& [name, missed] : left_out) updates_of_[name] -= missed;
}

void ModuleOptimizer::zero_grad(bool set_to_none) { model_.gradients().reset(set_to_none); }

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
