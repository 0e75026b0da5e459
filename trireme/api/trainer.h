// Trains a user's own list of modules with everything that `trireme train` has: replicas, pipeline stages, schedules,
// run folder, checkpoints and resume, metrics, and the settings of docs/configuration.md.
//
//   trireme::Trainer trainer(*world, trireme::modules_of(net), dataset, {"train.steps=500", "parallel.pipe=2"});
//   trainer.on_step([](const trireme::StepReport& report) { … });
//   auto result = trainer.run();
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/api/examples.h"
#include "trireme/api/module_layer.h"
#include "trireme/comm/world.h"
#include "trireme/train/run.h"

namespace trireme {

class Trainer {
 public:
  // Mean over the samples that it is given.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;

  // Each module maps one tensor to one tensor; between any two of them the model can be cut into stages
  // (parallel.pipe, parallel.cuts). All ranks give the same modules with the same parameters.
  template <class Examples>
  Trainer(World& world, std::vector<torch::nn::AnyModule> modules, Examples dataset,
          const std::vector<std::string>& settings = {})
      : Trainer(world, std::move(modules), as_dataset(std::move(dataset)), settings) {}
  Trainer(World& world, std::vector<torch::nn::AnyModule> modules, std::shared_ptr<const Dataset> dataset,
          const std::vector<std::string>& settings = {});

  // Cross entropy unless another one is given here.
  void set_loss(Loss loss) { loss_ = std::move(loss); }
  // Called on every rank after each step.
  void on_step(std::function<void(const StepReport&)> call) { options_.after_step = std::move(call); }
  // Of the run's folder: runs/NAME-N, where run_dir is not set.
  void set_name(std::string name) { options_.name = std::move(name); }
  // Go on with the newest run of this name, or with this folder or checkpoint.
  void resume(const std::filesystem::path& from = {});

  RunResult run();

 private:
  std::unique_ptr<Model> make_model() const;

  World& world_;
  std::vector<torch::nn::AnyModule> modules_;
  std::shared_ptr<const Dataset> dataset_;
  RunConfig config_;
  RunOptions options_;
  Loss loss_;
};

}  // namespace trireme
