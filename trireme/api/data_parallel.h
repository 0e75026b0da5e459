// Data parallelism for any torch::nn::Module: every rank runs the module on its own samples, and the gradients are
// averaged over all ranks, bucket by bucket, while the backward pass is still running.
//
//   trireme::DataParallel model(net, *world);
//   optimizer.zero_grad();         // trireme::AdamW, trireme::SGD, or any of torch::optim
//   auto loss = torch::nn::functional::cross_entropy(model.forward(x), y);
//   model.backward(loss);          // afterwards every rank holds the same gradients
//   optimizer.step();
//
// The module must have the same parameters on all ranks when it is wrapped: seed alike, or load the same file.
// Parameters that are frozen then are left alone until they are made to learn.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "trireme/api/shared_statistics.h"
#include "trireme/api/shown_gradients.h"
#include "trireme/comm/world.h"
#include "trireme/engine/executor.h"
#include "trireme/observe/watchdog.h"
#include "trireme/optim/store.h"
#include "trireme/parallel/gradient_sync.h"

namespace trireme {

struct DataParallelOptions {
  double bucket_mb = 8;    // gradients that travel together
  double heartbeat_s = 5;  // a rank that is silent for so long ends the job, by name
  double stop_s = 600;     // so does one that stays in one operation for so long
  // Whose samples a BatchNorm in training normalises by: those of all ranks, or of each rank alone.
  BatchNormKind batch_norm = BatchNormKind::synchronised;
};

// What DataParallel does whatever the module's type is.
class ReplicatedModule {
 public:
  ReplicatedModule(std::shared_ptr<torch::nn::Module> module, World& world, const DataParallelOptions& options);
  ~ReplicatedModule();

  // Runs the backward pass, averages the gradients over all ranks and adds them to what the parameters' .grad hold, as
  // torch's does. `weight` is what this rank's loss counts in the loss of all, 1 in sum over the ranks: a Batch of a
  // Loader knows it. Without one all ranks count alike.
  void backward(const at::Tensor& loss, std::optional<double> weight = std::nullopt);
  // The same for a part of the samples, without averaging: .grad holds this rank's own sum until the next backward()
  // adds its own and averages all.
  void accumulate(const at::Tensor& loss, std::optional<double> weight = std::nullopt);

  // The mean of a number over the ranks, weighed like their losses; for printing. Collective.
  double mean(double value, std::optional<double> weight = std::nullopt);

  World& world() { return world_; }
  const ParameterList& parameters() const { return parameters_; }
  const BufferList& buffers() const { return buffers_; }  // each rank has its own; the first one's are saved
  ParameterStore& store() { return *store_; }
  ShownGradients& gradients() { return *gradients_; }
  // Whether gradients are this rank's own sums, which the next backward() averages.
  bool accumulates() const { return accumulates_; }
  // Takes in what a user has done to the module since: parameters that learn now, or lie elsewhere. Collective.
  void follow_module();
  int64_t steps() const { return steps_; }  // backward() calls so far, those before a load() included
  void set_steps(int64_t steps) { steps_ = steps; }

 protected:
  SharedStatistics shared_statistics() const;

 private:
  at::Tensor gather_replicas(const at::Tensor& given);
  double weight_or_even(std::optional<double> weight) const;
  void adopt_module();
  bool is_adopted(const at::Tensor& value) const { return adopted_.contains(value.unsafeGetTensorImpl()); }
  bool takes_gradient(const Parameter& parameter) const;
  void move_state(const ParameterStore& from, const std::set<std::string>& in_place);
  void agree_on_gradients();
  void run_backward(const at::Tensor& loss, double weight, bool last);

  std::shared_ptr<torch::nn::Module> module_;
  World& world_;
  const double bucket_bytes_;
  ParameterList parameters_;
  std::set<const at::TensorImpl*> adopted_;  // what they are in the module
  BufferList buffers_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<ShownGradients> gradients_;
  RealClock clock_;
  Executor executor_;
  at::Tensor totals_;
  std::unique_ptr<GradientSync> sync_;
  GradientSync::Sends sends_;
  std::unique_ptr<Schedule> schedule_;
  GatherReplicas replicas_;  // empty: BatchNorms see this rank's samples
  Graph graph_;
  bool begun_ = false, accumulates_ = false, in_backward_ = false, broken_ = false;
  int64_t steps_ = 0;
  std::optional<Watchdog> watchdog_;
};

template <class Net>
class DataParallel final : public ReplicatedModule {
 public:
  DataParallel(Net net, World& world, const DataParallelOptions& options = {})
      : ReplicatedModule(pointer(net), world, options), net_(std::move(net)) {}

  // Whatever the module's own forward takes and gives.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    const OwnerScope scope(Owner::activations);
    const SharedStatistics shared = shared_statistics();
    return net_->forward(std::forward<Arguments>(arguments)...);
  }

  Net& module() { return net_; }

 private:
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> pointer(const std::shared_ptr<Impl>& net) {
    return net;
  }
  template <class Impl>
  static std::shared_ptr<torch::nn::Module> pointer(const torch::nn::ModuleHolder<Impl>& net) {
    return net.ptr();
  }

  Net net_;
};

}  // namespace trireme
