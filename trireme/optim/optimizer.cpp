#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

namespace {

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
    const OwnerScope scope(Owner::optimizer);
    bucket.state["exp_avg"] = at::zeros_like(bucket.master);
    bucket.state["exp_avg_sq"] = at::zeros_like(bucket.master);
  }

  void update_runs(Bucket& bucket, const std::vector<UpdateRun>& runs, double lr, double scale) const override {
    const auto divide_by = divisor(bucket, scale);
    at::Tensor count;
    int64_t counted = 0;
    for (const auto& run : runs) {
      if (run.step != counted) {
        counted = run.step;
        count = at::full({}, static_cast<double>(counted), bucket.master.options().dtype(at::kFloat));
      }
      const auto part = [&](const at::Tensor& buffer) { return buffer.narrow(0, run.first, run.size); };
      at::_fused_adamw_({part(bucket.master)}, {part(bucket.gradients)}, {part(bucket.state.at("exp_avg"))},
                        {part(bucket.state.at("exp_avg_sq"))}, {}, {count}, lr, config_.beta1, config_.beta2,
                        run.decays ? config_.weight_decay : 0, config_.epsilon, false, false, divide_by, std::nullopt);
    }
  }

 private:
  OptimizerConfig config_;
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const OptimizerConfig& config) : config_(config) {}

  void prepare(Bucket& bucket) const override {
    const OwnerScope scope(Owner::optimizer);
    if (config_.momentum > 0) bucket.state["momentum_buffer"] = at::zeros_like(bucket.master);
  }

  void update_runs(Bucket& bucket, const std::vector<UpdateRun>& runs, double lr, double scale) const override {
    const auto divide_by = divisor(bucket, scale);
    for (const auto& run : runs) {
      const auto part = [&](const at::Tensor& buffer) { return buffer.narrow(0, run.first, run.size); };
      std::vector<at::Tensor> momenta;
      if (config_.momentum > 0) momenta.push_back(part(bucket.state.at("momentum_buffer")));
      at::_fused_sgd_({part(bucket.master)}, {part(bucket.gradients)}, momenta, run.decays ? config_.weight_decay : 0,
                      config_.momentum, lr, /*dampening=*/0, config_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/run.step == 1, divide_by, std::nullopt);
    }
  }

 private:
  OptimizerConfig config_;
};

}  // namespace

void Optimizer::update(Bucket& bucket, int64_t step, double lr, double scale) const {
  std::vector<UpdateRun> runs;
  if (bucket.decaying > 0) runs.push_back({0, bucket.decaying, true, step});
  if (bucket.decaying < bucket.elements)
    runs.push_back({bucket.decaying, bucket.elements - bucket.decaying, false, step});
  update_runs(bucket, runs, lr, scale);
}

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
