#include "trireme/nn/batch_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/nn/batch_norm_kernel.h"

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Handed through autograd's context.
struct Holder : torch::CustomClassHolder {
  Holder(NormTensors norm, const GatherReplicas* replicas, bool relu)
      : norm(std::move(norm)), replicas(replicas), relu(relu) {}
  const NormTensors norm;
  const GatherReplicas* replicas;
  const bool relu;
  ParameterPtr gain, bias;  // whose slots take the gradients; null: autograd takes them
  at::Tensor count;         // of all replicas' elements of a channel
};

// What a microbatch with these moments is normalised by; takes them into the running averages.
ChannelScale scale_by(const NormTensors& norm, const at::Tensor& moments_K) {
  if (moments_K.is_cuda()) return channel_scale_cuda(moments_K, norm);
  const int64_t C = norm.gain_C.numel();
  const auto mean = moments_K.narrow(0, 0, C), squares = moments_K.narrow(0, C, C);
  const double count = moments_K[2 * C].item<double>();
  if (count < 2) fail("a BatchNorm has one element a channel to learn from: use larger batches or images");
  const auto type = norm.running_mean_C.scalar_type();
  norm.running_mean_C.lerp_(mean.to(type), norm.momentum);
  norm.running_variance_C.lerp_((squares / (count - 1)).to(type), norm.momentum);  // without its bias
  if (norm.batches.defined()) norm.batches.add_(1);
  const auto inverse = at::rsqrt(squares / count + norm.epsilon);
  return {mean, inverse, norm.gain_C.to(at::kDouble) * inverse, norm.bias_C.to(at::kDouble)};
}

GradientTerms terms_of(const at::Tensor& own_2C, const at::Tensor& all_2C, const at::Tensor& count,
                       const ChannelScale& scale) {
  if (own_2C.is_cuda()) return gradient_terms_cuda(own_2C, all_2C, count, scale);
  const auto share = scale.scale_C * (-1 / count.item<double>());
  return {share * scale.inverse_C.square() * all_2C[1], share * all_2C[0], own_2C[1] * scale.inverse_C};
}

struct BatchNormFunction : Function<BatchNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*gain*/,
                            const at::Tensor& /*bias*/, const std::optional<at::Tensor>& residual,
                            const c10::intrusive_ptr<Holder>& holder) {
    auto moments_K = channel_moments(x);
    if (holder->replicas) moments_K = combine_moments((*holder->replicas)(moments_K));
    holder->count = moments_K.narrow(0, moments_K.numel() - 1, 1);
    const auto scale = scale_by(holder->norm, moments_K);
    const bool masks = residual && holder->relu;
    auto y = scale_channels(x, scale, holder->relu, residual.value_or(at::Tensor()));
    context->save_for_backward(
        {x, masks ? y : at::Tensor(), scale.mean_C, scale.inverse_C, scale.scale_C, scale.shift_C});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["residual"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& holder = *static_cast<Holder*>(context->saved_data["holder"].toCapsule().get());
    const auto& x = saved[0];
    const ChannelScale scale{saved[2], saved[3], saved[4], saved[5]};
    PassedGradient g{gradients[0].contiguous(at::MemoryFormat::ChannelsLast), holder.relu, saved[1]};
    const auto own_2C = gradient_sums(g, x, scale);
    const auto all_2C = holder.replicas ? (*holder.replicas)(own_2C.view({-1})).sum(0).view({2, -1}) : own_2C;
    const auto terms = terms_of(own_2C, all_2C, holder.count, scale);
    auto dx = input_gradient(g, x, scale, terms.slope_C, terms.offset_C);
    const auto dresidual = context->saved_data["residual"].toBool() ? g.g_BCHW : at::Tensor();
    if (!holder.gain) {
      const auto type = holder.norm.gain_C.scalar_type();
      return {dx, terms.gain_C.to(type), own_2C[0].to(type), dresidual, {}};
    }
    holder.gain->gradient.add(terms.gain_C);
    holder.bias->gradient.add(own_2C[0]);
    return {dx, {}, {}, dresidual, {}};
  }
};

}  // namespace

at::Tensor combine_moments(const at::Tensor& all_RK) {
  const int64_t C = (all_RK.size(1) - 1) / 2;
  const auto means_RC = all_RK.narrow(1, 0, C), squares_RC = all_RK.narrow(1, C, C),
             counts_R1 = all_RK.narrow(1, 2 * C, 1);
  const auto count_1 = counts_R1.sum(0);
  const auto mean_C = (means_RC * counts_R1).sum(0) / count_1;
  return at::cat({mean_C, (squares_RC + (means_RC - mean_C).square() * counts_R1).sum(0), count_1});
}

at::Tensor batch_norm(const at::Tensor& x, const NormTensors& norm, const GatherReplicas& replicas) {
  NormTensors fixed = norm;
  fixed.gain_C = norm.gain_C.detach();
  fixed.bias_C = norm.bias_C.detach();
  return BatchNormFunction::apply(x.contiguous(at::MemoryFormat::ChannelsLast), norm.gain_C, norm.bias_C, std::nullopt,
                                  c10::make_intrusive<Holder>(fixed, &replicas, /*relu=*/false));
}

at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, const Pass& pass, bool relu,
                      const at::Tensor& residual) {
  if (pass.training) {
    const auto last = at::MemoryFormat::ChannelsLast;
    const auto added = residual.defined() ? std::optional(residual.contiguous(last)) : std::nullopt;
    const NormTensors tensors{norm.gain->value.detach(),
                              norm.bias->value.detach(),
                              norm.mean->value,
                              norm.variance->value,
                              norm.batches->value,
                              norm.epsilon,
                              norm.momentum};
    auto holder = c10::make_intrusive<Holder>(tensors, pass.replicas, relu);
    holder->gain = norm.gain;
    holder->bias = norm.bias;
    return BatchNormFunction::apply(x.contiguous(last), norm.gain->value, norm.bias->value, added, holder);
  }
  auto y = at::batch_norm(x, norm.gain->value, norm.bias->value, norm.mean->value, norm.variance->value,
                          /*training=*/false, norm.momentum, norm.epsilon, /*cudnn_enabled=*/true);
  if (residual.defined()) y = y + residual;
  return relu ? at::relu(y) : y;
}

}  // namespace trireme
