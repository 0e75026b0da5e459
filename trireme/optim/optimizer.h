// Optimizers change a bucket's masters by its gradients. They know nothing of ranks, layers or where the bucket lies.
#pragma once

#include <memory>
#include <vector>

#include "trireme/optim/store.h"
#include "trireme/spec/config.h"

namespace trireme {

// Elements of a bucket that are updated in one go.
struct UpdateRun {
  int64_t first = 0, size = 0;
  bool decays = false;
  int64_t step = 1;  // the number of this update, from 1
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Makes the bucket's state, all zeros.
  virtual void prepare(Bucket& bucket) const = 0;
  // Changes these elements by their gradients multiplied by `scale`; the others stay as they are.
  virtual void update_runs(Bucket& bucket, const std::vector<UpdateRun>& runs, double lr, double scale) const = 0;
  // The update number `step` of the whole bucket.
  void update(Bucket& bucket, int64_t step, double lr, double scale) const;
};

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

// The learning rate of update `step` (from 1) of `steps`: linear warm-up, then constant, cosine or linear decay to
// final_lr · lr.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace trireme
