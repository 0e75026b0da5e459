#include "trireme/nn/recompute.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The states of the generators that a forward pass on a device may draw from.
class Generators {
 public:
  explicit Generators(at::Device device) {
    keep(at::kCPU);
    if (!device.is_cpu()) keep(device);
  }
  void restore() const {
    for (const auto& [device, state] : states_) {
      auto generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  void keep(at::Device device) {
    auto generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(device, generator.get_state());
  }
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

struct Holder : torch::CustomClassHolder {
  Holder(std::shared_ptr<Layer> layer, Pass pass) : layer(std::move(layer)), pass(std::move(pass)) {}
  const std::shared_ptr<Layer> layer;
  const Pass pass;
  std::vector<at::Tensor> gathered;      // from the replicas, in the forward pass
  std::optional<Generators> generators;  // before it, of a layer that may draw from them
};

// Puts back what a layer remembers, when the backward pass has read what the forward pass left there.
class Remembered {
 public:
  explicit Remembered(const Layer& layer) : buffers_(layer.buffers()) {
    for (const auto& buffer : buffers_) values_.push_back(buffer->value.clone());
  }
  ~Remembered() {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i]->value.copy_(values_[i]);
  }
  Remembered(const Remembered&) = delete;
  Remembered& operator=(const Remembered&) = delete;

 private:
  const BufferList& buffers_;
  std::vector<at::Tensor> values_;
};

struct RecomputedFunction : Function<RecomputedFunction> {
  // `anchor` needs a gradient: so the result does, also where the input is none that could have one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<Holder>& holder) {
    context->save_for_backward({input});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    auto pass = holder->pass;
    const GatherReplicas recording = [&](const at::Tensor& given) {
      return holder->gathered.emplace_back((*holder->pass.replicas)(given));
    };
    if (pass.replicas) pass.replicas = &recording;
    if (holder->layer->is_pure()) return holder->layer->forward(input, pass);
    holder->generators.emplace(input.device());
    return holder->layer->forward(input.clone(), pass);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    const auto saved = context->get_saved_variables()[0];
    const auto input = saved.detach().requires_grad_(saved.requires_grad());
    auto pass = holder->pass;
    pass.before_layer = nullptr;
    size_t replayed = 0;
    const GatherReplicas replaying = [&](const at::Tensor& given) {  // then what the backward pass asks
      return replayed < holder->gathered.size() ? holder->gathered[replayed++] : (*holder->pass.replicas)(given);
    };
    if (pass.replicas) pass.replicas = &replaying;
    const Remembered unchanged(*holder->layer);
    at::Tensor output;
    {
      const c10::AutoGradMode with_gradients(true);
      if (holder->generators) {
        const Generators now(input.device());
        holder->generators->restore();
        output = holder->layer->forward(input.clone(), pass);
        now.restore();
      } else {
        output = holder->layer->forward(input, pass);
      }
    }
    if (pass.computed_again) (*pass.computed_again)();
    torch::autograd::backward({output}, gradients);
    return {input.grad(), {}, {}};
  }
};

}  // namespace

at::Tensor recomputed(const std::shared_ptr<Layer>& layer, const at::Tensor& input, const Pass& pass) {
  const auto& parameters = layer->parameters();
  const bool learns = input.requires_grad() || std::any_of(parameters.begin(), parameters.end(), [](const auto& one) {
                        return one->value.requires_grad();
                      });
  if (!c10::GradMode::is_enabled() || !learns) return layer->forward(input, pass);
  const auto anchor = at::empty({0}, input.options().dtype(at::kFloat)).requires_grad_(true);
  return RecomputedFunction::apply(input, anchor, c10::make_intrusive<Holder>(layer, pass));
}

}  // namespace trireme
