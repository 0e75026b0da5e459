#include "trireme/api/trainer.h"

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/device/device.h"
#include "trireme/optim/store.h"
#include "trireme/parallel/replica_check.h"

namespace trireme {

Trainer::Trainer(World& world, std::vector<torch::nn::AnyModule> modules, std::shared_ptr<const Dataset> dataset,
                 const std::vector<std::string>& settings)
    : world_(world), modules_(std::move(modules)), dataset_(std::move(dataset)) {
  std::vector<std::string> overrides{"model.kind=custom", "data.kind=custom", "data.validation=0"};
  if (!has_batch_norm(modules_)) overrides.push_back("model.batch_norm=local");  // there are no statistics to share
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  config_ = load_config({}, overrides);
  if (config_.model.kind != ModelKind::custom)
    refuse("Trainer: model.kind is not its to choose: it trains the modules that it is given");
  options_.quiet = world_.rank() != 0;
}

void Trainer::resume(const std::filesystem::path& from) {
  options_.resume = true;
  options_.resume_from = from;
}

std::unique_ptr<Model> Trainer::make_model() const {
  const auto type = master_type(config_.train.precision);
  const auto device = choose_device(config_.train.device == DeviceKind::cuda, world_.local_rank());
  for (const auto& module : modules_) module.ptr()->to(device, type);
  const std::vector<int64_t> first{0};
  auto sample = dataset_->decode(dataset_->get(first).inputs.to(device));
  auto model = model_of(modules_, sample.is_floating_point() ? sample.to(type) : sample);
  if (loss_) {
    model->loss = [loss = loss_](const at::Tensor& output, const at::Tensor& targets) {
      return loss(output, targets) * static_cast<double>(targets.size(0));
    };
  }
  return model;
}

RunResult Trainer::run() {
  auto model = make_model();
  check_same_parameters(model->parameters(), world_.communicator());
  // What the caller says after the run is none of the run's log.
  struct CloseLog {
    ~CloseLog() { log::set_file({}); }
  } const closes_log;
  return train(config_, world_, options_, Subject{std::move(model), split(dataset_, config_.data.validation)});
}

}  // namespace trireme
