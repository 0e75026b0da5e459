// Optimizers change a bucket's masters by its gradients. They know nothing of ranks, layers or where the bucket lies.
#pragma once

#include <memory>
#include <vector>

#include "trireme/optim/store.h"
#include "trireme/spec/config.h"

namespace trireme {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Makes the bucket's state, all zeros.
  virtual void prepare(Bucket& bucket) const = 0;
  // The update number `step` (from 1) with gradients multiplied by `scale`.
  virtual void update(Bucket& bucket, int64_t step, double lr, double scale) const = 0;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

// The learning rate of update `step` (from 1) of `steps`: linear warm-up, then constant, cosine or linear decay to
// final_lr · lr.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace trireme
