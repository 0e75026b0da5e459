#include "trireme/api/data_parallel.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <exception>

#include "trireme/api/module_layer.h"
#include "trireme/base/error.h"
#include "trireme/parallel/replica_check.h"

namespace trireme {

namespace {

// All parameters must be of one type and on one device: they lie in the same buffers.
Precision precision_of(const ParameterList& parameters) {
  if (parameters.empty()) refuse("DataParallel: the module has no parameters that learn");
  const auto& first = *parameters.front();
  for (const auto& parameter : parameters) {
    if (parameter->value.scalar_type() != first.value.scalar_type() ||
        parameter->value.device() != first.value.device()) {
      refuse("DataParallel: {} is {} on {}, but {} is {} on {}: move the whole module to one type and device first",
             first.name, c10::toString(first.value.scalar_type()), first.value.device().str(), parameter->name,
             c10::toString(parameter->value.scalar_type()), parameter->value.device().str());
    }
  }
  switch (first.value.scalar_type()) {
    case at::kDouble: return Precision::fp64;
    case at::kFloat: return Precision::fp32;
    case at::kBFloat16: return Precision::bf16;
    default:
      refuse("DataParallel: parameters of type {} are not trained; use float, double or bfloat16",
             c10::toString(first.value.scalar_type()));
  }
}

}  // namespace

ReplicatedModule::ReplicatedModule(std::shared_ptr<torch::nn::Module> module, World& world,
                                   const DataParallelOptions& options)
    : module_(std::move(module)),
      world_(world),
      parameters_(adopt_parameters(*module_, "")),
      buffers_(adopt_buffers(*module_, "")),
      executor_(world.recorder(), clock_, &world.communicator()),
      totals_(at::zeros({1}, at::kDouble)),
      schedule_(make_schedule(ScheduleKind::gpipe, {}, {})) {
  const auto precision = precision_of(parameters_);
  check_same_parameters(parameters_, world.communicator());
  const auto device = parameters_.front()->value.device();
  store_ = std::make_unique<ParameterStore>(
      parameters_, precision, device, options.bucket_mb * 1e6,
      [&](int64_t bytes, int) { return world.communicator().allocate(bytes, everybody, device); });
  sync_ = std::make_unique<GradientSync>(SyncConfig{}, *store_, world.communicator(), GradientSync::Groups{}, executor_,
                                         totals_);
  sends_ = sync_->add_tasks(graph_);
  store_->account(world.recorder().memory());
  if (world.size() > 1 && options.batch_norm == BatchNormKind::synchronised)
    replicas_ = [this](const at::Tensor& given) { return gather_replicas(given); };
  // Ranks that are threads live and die together: there is nobody to watch.
  if (world.size() > 1 && !world.ranks_are_threads()) {
    WatchdogOptions watch;
    watch.heartbeat_s = options.heartbeat_s;
    watch.stop_s = options.stop_s;
    watch.look_outside = [this, heartbeat_s = options.heartbeat_s](bool stepping) {
      return world_.silent_hosts(stepping ? heartbeat_s + 2 : 0);
    };
    watchdog_.emplace(world.board(), world.local_rank(), world.rank(), watch);
  }
}

ReplicatedModule::~ReplicatedModule() {
  // A rank that ends by an error is missed by the others, and they say so.
  if (watchdog_ && std::uncaught_exceptions() == 0) watchdog_->stand_down();
}

SharedStatistics ReplicatedModule::shared_statistics() const {
  return SharedStatistics(replicas_ && module_->is_training() ? &replicas_ : nullptr);
}

at::Tensor ReplicatedModule::gather_replicas(const at::Tensor& given) {
  auto& communicator = world_.communicator();
  auto all = at::empty({world_.size(), given.numel()}, given.options());
  communicator.now([&] { return communicator.all_gather(given.contiguous(), all.view({-1}), "batch statistics"); });
  return all;
}

double ReplicatedModule::weight_or_even(std::optional<double> weight) const {
  return weight.value_or(1.0 / world_.size());
}

void ReplicatedModule::begin_step() {
  if (in_step_) return;
  world_.recorder().set_step(steps_ + 1);
  store_->begin_step();
  executor_.begin(graph_, *schedule_);
  in_step_ = true;
}

void ReplicatedModule::run_backward(const at::Tensor& loss, double weight, bool last) {
  if (loss.numel() != 1)
    refuse("backward wants a loss of one element, not of shape [{}]", fmt::join(loss.sizes(), ", "));
  begin_step();
  // What the optimizer saw after the last step would be added to.
  for (const auto& parameter : parameters_) parameter->value.mutable_grad().reset();
  if (last) {
    sync_->begin_step(1, sends_);
  } else {
    sync_->hold();
  }
  GradientSync::begin_pass(parameters_);
  loss.backward(at::full_like(loss, weight));
  sync_->end_pass(parameters_);
  if (last) sync_->check_complete();
}

void ReplicatedModule::accumulate(const at::Tensor& loss, std::optional<double> weight) {
  run_backward(loss, weight_or_even(weight), /*last=*/false);
}

void ReplicatedModule::backward(const at::Tensor& loss, std::optional<double> weight) {
  run_backward(loss, weight_or_even(weight), /*last=*/true);
  executor_.finish();
  in_step_ = false;
  ++steps_;
  // Where optimizers of torch look for them. bf16 parameters have gradients of fp32.
  for (const auto& parameter : parameters_) parameter->value.mutable_grad() = parameter->gradient.view;
}

double ReplicatedModule::mean(double value, std::optional<double> weight) {
  const auto sum = at::full({1}, value * weight_or_even(weight), at::kDouble);
  auto& communicator = world_.communicator();
  communicator.now([&] { return communicator.all_reduce(sum, ReduceOp::sum, "mean"); });
  return sum.item<double>();
}

}  // namespace trireme
