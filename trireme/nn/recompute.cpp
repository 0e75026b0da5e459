#include "trireme/nn/recompute.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Holder : torch::CustomClassHolder {
  Holder(std::shared_ptr<Layer> layer, Pass pass) : layer(std::move(layer)), pass(std::move(pass)) {}
  const std::shared_ptr<Layer> layer;
  const Pass pass;
  std::vector<at::Tensor> gathered;  // from the replicas, in the forward pass
};

// Puts back what a layer remembers.
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
    const GatherReplicas noted = [&](const at::Tensor& given) {
      return holder->gathered.emplace_back((*holder->pass.replicas)(given));
    };
    if (pass.replicas) pass.replicas = &noted;
    return holder->layer->forward(input, pass);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    const auto saved = context->get_saved_variables()[0];
    const auto input = saved.detach().requires_grad_(saved.requires_grad());
    auto pass = holder->pass;
    pass.before_layer = nullptr;
    size_t told = 0;
    const GatherReplicas known = [&](const at::Tensor& given) {  // then what the backward pass asks
      return told < holder->gathered.size() ? holder->gathered[told++] : (*holder->pass.replicas)(given);
    };
    if (pass.replicas) pass.replicas = &known;
    at::Tensor output;
    {
      const c10::AutoGradMode with_gradients(true);
      const Remembered unchanged(*holder->layer);
      output = holder->layer->forward(input, pass);
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
