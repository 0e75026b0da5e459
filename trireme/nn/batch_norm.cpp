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
  Holder(const BatchNorm& norm, const GatherReplicas* replicas, bool relu)
      : norm(norm), replicas(replicas), relu(relu) {}
  const BatchNorm norm;
  const GatherReplicas* replicas;
  const bool relu;
  double count = 0;  // of all replicas
};

BatchMoments moments_of(const at::Tensor& x, const GatherReplicas* replicas) {
  const auto own = channel_moments(x);
  const auto count = at::full({1}, static_cast<double>(x.size(0) * x.size(2) * x.size(3)), at::kDouble);
  if (!replicas) return {own[0], own[1], count[0]};
  return combine_moments((*replicas)(at::cat({own.view({-1}), count})));
}

struct HostFunction : Function<HostFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gain,
                            const std::optional<at::Tensor>& residual, const c10::intrusive_ptr<Holder>& holder) {
    const auto& norm = holder->norm;
    const auto moments = moments_of(x, holder->replicas);
    holder->count = moments.count.item<double>();
    if (holder->count < 2)
      fail("{} has one element a channel to learn from: use larger batches or images", norm.mean->name);
    remember_moments(norm, moments);
    const auto inverse = at::rsqrt(moments.squares_C / holder->count + norm.epsilon);
    const ChannelScale scale{moments.mean_C, gain.to(at::kDouble) * inverse, norm.bias->value.detach().to(at::kDouble)};
    const bool masks = residual && holder->relu;
    auto y = scale_channels(x, scale, holder->relu, residual.value_or(at::Tensor()));
    context->save_for_backward({x, masks ? y : at::Tensor(), scale.mean_C, scale.scale_C, scale.shift_C, inverse});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["residual"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& holder = *static_cast<Holder*>(context->saved_data["holder"].toCapsule().get());
    const auto& x = saved[0];
    const auto& inverse = saved[5];
    const ChannelScale scale{saved[2], saved[3], saved[4]};
    PassedGradient g{gradients[0].contiguous(at::MemoryFormat::ChannelsLast), holder.relu, saved[1]};
    const auto own = gradient_sums(g, x, scale);
    const auto all = holder.replicas ? (*holder.replicas)(own.view({-1})).sum(0).view({2, -1}) : own;
    const auto slope = scale.scale_C * inverse * inverse * all[1] * (-1 / holder.count);
    const auto offset = scale.scale_C * all[0] * (-1 / holder.count);
    auto dx = input_gradient(g, x, scale, slope, offset);
    holder.norm.gain->gradient.add(own[1] * inverse);
    holder.norm.bias->gradient.add(own[0]);
    return {dx, {}, context->saved_data["residual"].toBool() ? g.g_BCHW : at::Tensor(), {}};
  }
};

}  // namespace

BatchMoments combine_moments(const at::Tensor& all_RK) {
  const int64_t C = (all_RK.size(1) - 1) / 2;
  const auto means_RC = all_RK.narrow(1, 0, C), squares_RC = all_RK.narrow(1, C, C),
             counts_R1 = all_RK.narrow(1, 2 * C, 1);
  const auto count = counts_R1.sum();
  const auto mean_C = (means_RC * counts_R1).sum(0) / count;
  return {mean_C, (squares_RC + (means_RC - mean_C).square() * counts_R1).sum(0), count};
}

void remember_moments(const BatchNorm& norm, const BatchMoments& moments) {
  const auto type = norm.mean->value.scalar_type();
  norm.mean->value.lerp_(moments.mean_C.to(type), norm.momentum);
  norm.variance->value.lerp_((moments.squares_C / (moments.count - 1)).to(type), norm.momentum);
  norm.batches->value.add_(1);
}

at::Tensor batch_norm_host(const at::Tensor& x, const BatchNorm& norm, const Pass& pass, bool relu,
                           const at::Tensor& residual) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto added = residual.defined() ? std::optional(residual.contiguous(last)) : std::nullopt;
  return HostFunction::apply(x.contiguous(last), norm.gain->value, added,
                             c10::make_intrusive<Holder>(norm, pass.replicas, relu));
}

at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, const Pass& pass, bool relu,
                      const at::Tensor& residual) {
  if (pass.training) {
    return x.is_cuda() ? batch_norm_card(x, norm, pass, relu, residual)
                       : batch_norm_host(x, norm, pass, relu, residual);
  }
  auto y = at::batch_norm(x, norm.gain->value, norm.bias->value, norm.mean->value, norm.variance->value,
                          /*training=*/false, norm.momentum, norm.epsilon, /*cudnn_enabled=*/true);
  if (residual.defined()) y = y + residual;
  return relu ? at::relu(y) : y;
}

}  // namespace trireme
