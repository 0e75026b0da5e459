// The trainer: a training step as tasks on the engine. Its graph, for m microbatches and b buckets:
//
//   load → forward 0 → backward 0 → … → forward m−1 → backward m−1 → (loss over all ranks)  ┐
//                                            └ as gradients come: reduce 0 … reduce b−1     ├→ decide → optimize 0 …
//                                            b−1
//                                                                  └ norm 0 … norm b−1      ┘
//
// `decide` sees the loss and the gradient norm of the whole job, so every rank decides alike: update, or skip.
#pragma once

#include <memory>
#include <optional>

#include "trireme/comm/world.h"
#include "trireme/data/dataset.h"
#include "trireme/data/loader.h"
#include "trireme/engine/executor.h"
#include "trireme/nn/model.h"
#include "trireme/observe/step_report.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/store.h"
#include "trireme/parallel/gradient_sync.h"
#include "trireme/spec/config.h"

namespace trireme {

// What a run carries from step to step besides the parameters and the optimizer's state.
struct Progression {
  int64_t step = 0;     // steps done
  int64_t updates = 0;  // of which so many changed the parameters
  int64_t skipped = 0;  // and so many were skipped for values that are not finite
  int64_t skipped_in_a_row = 0;
};

// Refuses more ranks than there are samples for.
void check_shares(const RunConfig& config, const Dataset& data, int ranks);

class Trainer {
 public:
  Trainer(const RunConfig& config, World& world, const Split& data);
  ~Trainer();

  // Does the next step; `stop` is this rank's wish to end, agreed on by all ranks in stop_agreed().
  StepReport step(bool stop);
  // Says that the step was skipped for values that are not finite, or fails when too many were; after its report has
  // been recorded.
  void check_finite(const StepReport& report) const;
  bool stop_agreed() const { return stop_agreed_; }

  // Mean loss over `train.eval_batches` batches of the held-out samples; nothing when there are none.
  std::optional<double> evaluate();

  Model& model() { return *model_; }
  ParameterStore& store() { return *store_; }
  Progression& progression() { return progression_; }
  at::Device device() const { return device_; }
  std::string brief() const;  // one line: model, parameters, ranks, batch

 private:
  void build_step();
  void build_evaluation();
  void forward(size_t microbatch);
  void backward(size_t microbatch);
  void decide();
  Microbatch on_device(const Microbatch& microbatch) const;

  const RunConfig& config_;
  World& world_;
  const Split& data_;
  at::Device device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Optimizer> optimizer_;

  InOrder schedule_;
  RealClock clock_;
  Executor executor_;
  std::unique_ptr<GradientSync> sync_;
  Graph step_graph_, evaluation_graph_;

  std::unique_ptr<Loader> loader_;
  std::vector<Share> pieces_;     // of the training batch
  std::vector<Share> evaluated_;  // of the held-out samples
  LoadedStep loaded_;
  at::Tensor loss_;                  // of the microbatch between its forward and its backward
  at::Tensor loss_sum_;              // over this rank's samples, on the device
  at::Tensor totals_;                // summed over ranks: loss, stop, on the host
  std::vector<at::Tensor> squares_;  // of each bucket's gradients

  Progression progression_;
  bool wants_stop_ = false, stop_agreed_ = false;
  double grad_norm_ = 0, scale_ = 1, lr_ = 0;
  bool update_ = true;
};

}  // namespace trireme
