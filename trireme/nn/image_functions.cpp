#include "trireme/nn/image_functions.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Holder : torch::CustomClassHolder {
  Holder(ParameterPtr weight, ParameterPtr bias, Window window)
      : weight(std::move(weight)), bias(std::move(bias)), window(window) {}
  const ParameterPtr weight, bias;
  const Window window;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients_of(const at::Tensor& g, const at::Tensor& x,
                                                            const at::Tensor& weight, Window window, bool of_input) {
  return at::convolution_backward(g, x, weight, std::nullopt, {window.stride, window.stride},
                                  {window.padding, window.padding}, {1, 1}, /*transposed=*/false, {0, 0},
                                  /*groups=*/1, {of_input, !of_input, false});
}

struct ConvolutionFunction : Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const c10::intrusive_ptr<Holder>& holder) {
    const auto window = holder->window;
    context->save_for_backward({x, weight});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    const auto bias = holder->bias ? std::optional(holder->bias->value.detach()) : std::nullopt;
    return at::convolution(x, weight, bias, {window.stride, window.stride}, {window.padding, window.padding}, {1, 1},
                           /*transposed=*/false, {0, 0}, /*groups=*/1);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& holder = *static_cast<Holder*>(context->saved_data["holder"].toCapsule().get());
    const auto &x = saved[0], &weight = saved[1];
    const auto g = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = std::get<0>(gradients_of(g, x, weight, holder.window, true));
    const auto compute = [g, x = x.detach(), weight = weight.detach(), window = holder.window] {
      return std::get<1>(gradients_of(g, x, weight, window, false));
    };
    holder.weight->gradient.add_computed(compute, g, x);
    if (holder.bias) holder.bias->gradient.add_column_sums(g.permute({0, 2, 3, 1}).reshape({-1, g.size(1)}));
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor convolution(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias, Window window) {
  return ConvolutionFunction::apply(x.contiguous(at::MemoryFormat::ChannelsLast), weight->value,
                                    c10::make_intrusive<Holder>(weight, bias, window));
}

}  // namespace trireme
