#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// The two runs of a bucket: with and without weight decay.
template <class Update>
void for_each_run(const Bucket& bucket, double weight_decay, Update update) {
  if (bucket.decaying > 0) update(0, bucket.decaying, weight_decay);
  if (bucket.decaying < bucket.elements) update(bucket.decaying, bucket.elements - bucket.decaying, 0.0);
}

// Gradients are scaled inside torch's fused kernels, which divide by an fp32 tensor. That is too coarse for fp64
// gradients: they are scaled here, in a pass of their own.
std::optional<at::Tensor> divisor(Bucket& bucket, double scale) {
  if (scale == 1) return std::nullopt;
  if (bucket.gradients.scalar_type() == at::kDouble) {
    bucket.gradients.mul_(scale);
    return std::nullopt;
  }
  return at::full({}, 1 / scale, bucket.gradients.options().dtype(at::kFloat));
}

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}

  void prepare(Bucket& bucket) const override {
    bucket.state["exp_avg"] = at::zeros_like(bucket.master);
    bucket.state["exp_avg_sq"] = at::zeros_like(bucket.master);
  }

  void update(Bucket& bucket, int64_t step, double lr, double scale) const override {
    const auto divide_by = divisor(bucket, scale);
    const auto count = at::full({}, static_cast<double>(step), bucket.master.options().dtype(at::kFloat));
    for_each_run(bucket, config_.weight_decay, [&](int64_t first, int64_t size, double weight_decay) {
      const auto run = [&](const at::Tensor& buffer) { return buffer.narrow(0, first, size); };
      at::_fused_adamw_({run(bucket.master)}, {run(bucket.gradients)}, {run(bucket.state.at("exp_avg"))},
                        {run(bucket.state.at("exp_avg_sq"))}, {}, {count}, lr, config_.beta1, config_.beta2,
                        weight_decay, config_.epsilon, false, false, divide_by, std::nullopt);
    });
  }

 private:
  OptimizerConfig config_;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerConfig& config) : config_(config) {}

  void prepare(Bucket& bucket) const override {
    if (config_.momentum > 0) bucket.state["momentum_buffer"] = at::zeros_like(bucket.master);
  }

  void update(Bucket& bucket, int64_t step, double lr, double scale) const override {
    const auto divide_by = divisor(bucket, scale);
    for_each_run(bucket, config_.weight_decay, [&](int64_t first, int64_t size, double weight_decay) {
      const auto run = [&](const at::Tensor& buffer) { return buffer.narrow(0, first, size); };
      std::vector<at::Tensor> momenta;
      if (config_.momentum > 0) momenta.push_back(run(bucket.state.at("momentum_buffer")));
      at::_fused_sgd_({run(bucket.master)}, {run(bucket.gradients)}, momenta, weight_decay, config_.momentum, lr,
                      /*dampening=*/0, config_.nesterov, /*maximize=*/false, /*is_first_step=*/step == 1, divide_by,
                      std::nullopt);
    });
  }

 private:
  OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::adamw: return std::make_unique<AdamW>(config);
    case OptimizerKind::sgd: return std::make_unique<Sgd>(config);
  }
  fail("no such optimizer");
}

double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step <= config.warmup) return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup);
  const double span = static_cast<double>(std::max<int64_t>(1, steps - config.warmup));
  const double progress = std::clamp(static_cast<double>(step - config.warmup) / span, 0.0, 1.0);
  switch (config.schedule) {
    case LrSchedule::constant: return config.lr;
    case LrSchedule::linear: return config.lr * (1 - (1 - config.final_lr) * progress);
    case LrSchedule::cosine:
      return config.lr * (config.final_lr + (1 - config.final_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2);
  }
  return config.lr;
}

}  // namespace trireme
