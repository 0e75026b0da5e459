// Optimizers for a module that DataParallel wraps. They work on whole buckets at once, and are the same on all ranks
// because the gradients are. Their names, settings and numbers are those of torch::optim.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

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
  // Changes the parameters by their .grad, as it is now: backward() left it, and its user may have scaled, clipped or
  // replaced it. A parameter without a gradient stays as it is.
  void step();
  // Empties the gradients, or makes them zeros. May be left out: after a step, backward() begins anew.
  void zero_grad(bool set_to_none = true);

  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }
  double gradient_norm() const { return norm_; }  // of the last step, where it clips

  int64_t updates() const { return updates_; }
  // By parameter: how many of the updates have left it out, because it had no gradient. Only those that were.
  std::map<std::string, int64_t> left_out() const;
  void set_updates(int64_t updates, const std::map<std::string, int64_t>& left_out = {});

 protected:
  ModuleOptimizer(ReplicatedModule& model, const OptimizerConfig& config);

 private:
  std::vector<UpdateRun> runs_of(const Bucket& bucket);

  ReplicatedModule& model_;
  std::unique_ptr<Optimizer> optimizer_;
  double lr_, clip_, norm_ = 0;
  int64_t updates_ = 0;
  std::map<std::string, int64_t> updates_of_;  // by parameter: a bias correction is of its own updates
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
