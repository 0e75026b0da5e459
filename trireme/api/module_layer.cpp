#include "trireme/api/module_layer.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/profiler/util.h>
#include <torch/nn/modules/batchnorm.h>

#include "trireme/api/shared_statistics.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

// Hands each gradient that autograd has summed up to the parameter's slot.
class ToSlot final : public torch::autograd::PostAccumulateGradHook {
 public:
  ToSlot(const ParameterPtr& parameter, const Adoption& adoption) : parameter_(parameter), takes_(adoption.takes) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    const auto parameter = parameter_.lock();
    if (!parameter || !parameter->gradient.view.defined()) return;
    if (takes_ && !takes_(*parameter)) return;
    const c10::NoGradGuard no_grad;
    parameter->gradient.add(tensor.grad());
    tensor.mutable_grad().reset();
  }

 private:
  std::weak_ptr<Parameter> parameter_;  // which holds the tensor that holds this
  std::function<bool(const Parameter&)> takes_;
};

// Adds up the floating point operations that run on this thread while it lives.
class CountedFlops {
 public:
  CountedFlops() {
    counted_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&CountedFlops::count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedFlops() { at::removeCallback(handle_); }

  double sum() const { return counted_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    const auto shapes = torch::profiler::impl::saveExtraArgs(function);
    counted_ += static_cast<double>(torch::profiler::impl::computeFlops(std::string(function.name()), shapes));
    return nullptr;
  }

  static inline thread_local double counted_ = 0;
  at::CallbackHandle handle_{};
};

}  // namespace

ParameterList adopt_parameters(const torch::nn::Module& module, const std::string& prefix, const Adoption& adoption) {
  ParameterList adopted;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad() && !(adoption.also && adoption.also(item.value()))) continue;
    auto parameter = std::make_shared<Parameter>();
    parameter->name = prefix + item.key();
    parameter->value = item.value();
    parameter->shape = parameter->value.sizes().vec();
    parameter->initial = Initial::given();
    parameter->optional = true;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter->value, std::make_unique<ToSlot>(parameter, adoption));
    adopted.push_back(std::move(parameter));
  }
  return adopted;
}

BufferList adopt_buffers(const torch::nn::Module& module, const std::string& prefix) {
  BufferList adopted;
  for (const auto& item : module.named_buffers())
    adopted.push_back(std::make_shared<Buffer>(Buffer{prefix + item.key(), item.value()}));
  return adopted;
}

namespace {

LayerParts adopt(std::string name, const torch::nn::Module& module) {
  LayerParts parts;
  parts.parameters = adopt_parameters(module, name + ".");
  parts.buffers = adopt_buffers(module, name + ".");
  for (const auto& parameter : parts.parameters) parts.spec.parameters += parameter->value.numel();
  for (const auto& buffer : parts.buffers)
    parts.spec.buffers.push_back({buffer->name, buffer->value.sizes().vec(), 0, !buffer->value.is_floating_point()});
  parts.spec.name = std::move(name);
  return parts;
}

}  // namespace

ModuleLayer::ModuleLayer(std::string name, torch::nn::AnyModule module)
    : Layer(adopt(std::move(name), *module.ptr())), module_(std::move(module)) {}

at::Tensor ModuleLayer::forward(const at::Tensor& input, const Pass& pass) {
  auto& module = *module_.ptr();
  if (module.is_training() != pass.training) module.train(pass.training);
  const SharedStatistics shared(pass.training ? pass.replicas : nullptr);
  return module_.forward<at::Tensor>(input);
}

at::Tensor ModuleLayer::measure(const at::Tensor& sample) {
  const c10::NoGradGuard no_grad;
  const CountedFlops flops;
  auto output = forward(sample, {});
  parts_.spec.forward_flops = flops.sum();
  parts_.spec.backward_flops = 2 * parts_.spec.forward_flops;
  parts_.spec.output = output.numel();
  return output;
}

std::unique_ptr<Model> model_of(const std::vector<torch::nn::AnyModule>& modules, const at::Tensor& sample) {
  if (modules.empty()) refuse("a model needs at least one module");
  auto model = std::make_unique<Model>();
  model->input = sample.numel();
  auto x = sample;
  for (size_t i = 0; i < modules.size(); ++i) {
    auto layer = std::make_unique<ModuleLayer>(std::to_string(i), modules[i]);
    try {
      x = layer->measure(x);
    } catch (const c10::Error& error) {
      refuse("module {} of the model ({}) cannot take what comes before it, a batch of shape [{}]: {}", i,
             modules[i].ptr()->name(), fmt::join(x.sizes(), ", "), error.what_without_backtrace());
    }
    model->layers.push_back(std::move(layer));
  }
  return model;
}

bool has_batch_norm(const std::vector<torch::nn::AnyModule>& modules) {
  for (const auto& module : modules) {
    for (const auto& part : module.ptr()->modules()) {
      if (part->as<torch::nn::BatchNorm1d>() || part->as<torch::nn::BatchNorm2d>() ||
          part->as<torch::nn::BatchNorm3d>())
        return true;
    }
  }
  return false;
}

std::vector<torch::nn::AnyModule> modules_of(const torch::nn::Sequential& sequential) {
  return {sequential->begin(), sequential->end()};
}

}  // namespace trireme
