// Optimizers for a module that DataParallel wraps. They work on whole buckets at once, and are the same on all ranks
// because the gradients are. Their names, settings and numbers are those of torch::optim.
#pragma once

#include <memory>

#include "trireme/api/data_parallel.h"
#include "trireme/optim/optimizer.h"

namespace trireme {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 1e-2;
  double clip = 0;  // the largest norm of the whole gradient; 0: any
};

struct SGDOptions {
  double lr = 1e-2;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double clip = 0;
};

class ModuleOptimizer {
 public:
  // Changes the parameters by the gradients that backward() left.
  void step();

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  double gradient_norm() const { return norm_; }  // of the last step, where it clips

  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

 protected:
  ModuleOptimizer(ReplicatedModule& model, const OptimizerConfig& config);

 private:
  ReplicatedModule& model_;
  std::unique_ptr<Optimizer> optimizer_;
  double lr_, clip_, norm_ = 0;
  int64_t updates_ = 0;
};

class AdamW final : public ModuleOptimizer {
 public:
  explicit AdamW(ReplicatedModule& model, const AdamWOptions& options = {});
};

class SGD final : public ModuleOptimizer {
 public:
  explicit SGD(ReplicatedModule& model, const SGDOptions& options = {});
};

}  // namespace trireme
