// The functions that Llama adds: RMSNorm, rotary positions and SwiGLU.
#include <ATen/ATen.h>

#include <optional>

#include "trireme/nn/function_context.h"
#include "trireme/nn/functions.h"
#include "trireme/nn/rms_norm_kernel.h"
#include "trireme/nn/rotary_kernel.h"
#include "trireme/nn/swiglu_kernel.h"

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain,
                            const ParameterPtr& parameter, double epsilon) {
    auto [y, inverse] = rms_norm_values(x, gain, epsilon);
    context->save_for_backward({x, gain, inverse});
    keep(context, {parameter});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto found = rms_norm_gradients(gradients[0], saved[0], saved[2], saved[1]);
    const auto& gain = kept(context)[0];
    if (gain->trained) gain->gradient.add(found.gain);
    return {found.x, {}, {}, {}};
  }
};

struct RotaryFunction : Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_BTHD, const Rotations& rotations,
                            int64_t first, const std::optional<at::Tensor>& positions_BT) {
    context->save_for_backward({rotations.cosines, rotations.sines, positions_BT.value_or(at::Tensor())});
    context->saved_data["first"] = first;
    return rotate(x_BTHD, rotations, first, positions_BT.value_or(at::Tensor()), /*back=*/false);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t first = context->saved_data["first"].toInt();
    return {rotate(gradients[0], {saved[0], saved[1]}, first, saved[2], /*back=*/true), {}, {}, {}};
  }
};

struct SwigluFunction : Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return swiglu_values(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto [of_gate, of_up] = swiglu_gradients(gradients[0], saved[0], saved[1]);
    return {of_gate, of_up};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const ParameterPtr& gain, double epsilon) {
  return RmsNormFunction::apply(x, gain->value, gain, epsilon);
}

at::Tensor rotary(const at::Tensor& x_BTHD, const Rotations& rotations, int64_t first, const at::Tensor& positions_BT) {
  const auto given = positions_BT.defined() ? std::optional(positions_BT) : std::nullopt;
  return RotaryFunction::apply(x_BTHD, rotations, first, given);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return SwigluFunction::apply(gate, up); }

}  // namespace trireme
