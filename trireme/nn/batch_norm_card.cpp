// BatchNorm on a card: cuDNN's where the samples are this rank's alone; otherwise torch's kernels for its parts, with
// the exchange between them. Nothing here waits for the card.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "trireme/nn/batch_norm.h"

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Holder : torch::CustomClassHolder {
  Holder(const BatchNorm& norm, const GatherReplicas* replicas, bool relu)
      : norm(norm), replicas(replicas), relu(relu) {}
  const BatchNorm norm;
  const GatherReplicas* replicas;
  const bool relu;
  int64_t way = 0;  // which of torch's kernels made the output
};

// What a forward pass leaves: `counts` of the replicas' elements, or, alone, what cuDNN reserves.
struct Normalised {
  at::Tensor y, mean, inverse, counts_or_reserve;
};

Normalised normalise(const at::Tensor& x, Holder& holder) {
  const auto& norm = holder.norm;
  const auto gain = norm.gain->value.detach(), bias = norm.bias->value.detach();
  if (!holder.replicas) {
    auto [y, mean, inverse, reserve, way] =
        at::_batch_norm_impl_index(x, gain, bias, norm.mean->value, norm.variance->value, /*training=*/true,
                                   norm.momentum, norm.epsilon, /*cudnn_enabled=*/true);
    holder.way = way;
    norm.batches->value.add_(1);
    return {y, mean, inverse, reserve};
  }
  const int64_t C = x.size(1), elements = x.size(0) * x.size(2) * x.size(3);
  const auto count = at::full({1}, static_cast<double>(elements), gain.options());
  auto mean = at::zeros({C}, gain.options()), inverse = at::ones({C}, gain.options());
  if (elements > 0) std::tie(mean, inverse) = at::batch_norm_stats(x, norm.epsilon);
  const auto squares = (inverse.square().reciprocal() - norm.epsilon) * count;
  const auto all_RK = (*holder.replicas)(at::cat({mean, squares, count}));
  const auto moments = combine_moments(all_RK);
  remember_moments(norm, moments);
  inverse = (moments.squares_C / moments.count + norm.epsilon).rsqrt();
  const auto y =
      elements > 0 ? at::batch_norm_elemt(x, gain, bias, moments.mean_C, inverse, norm.epsilon) : at::empty_like(x);
  return {y, moments.mean_C, inverse, all_RK.select(1, 2 * C).to(at::kInt)};
}

struct CardFunction : Function<CardFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*gain*/,
                            const std::optional<at::Tensor>& residual, const c10::intrusive_ptr<Holder>& holder) {
    auto result = normalise(x, *holder);
    if (residual) result.y.add_(*residual);
    if (holder->relu) at::relu_(result.y);
    context->save_for_backward(
        {x, holder->relu ? result.y : at::Tensor(), result.mean, result.inverse, result.counts_or_reserve});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["residual"] = residual.has_value();
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& holder = *static_cast<Holder*>(context->saved_data["holder"].toCapsule().get());
    const auto& norm = holder.norm;
    const auto &x = saved[0], &mean = saved[2], &inverse = saved[3];
    const auto gain = norm.gain->value.detach();
    auto g = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    if (holder.relu) g = at::threshold_backward(g, saved[1], 0);
    at::Tensor dx, dgain, dbias;
    if (!holder.replicas) {
      std::tie(dx, dgain, dbias) =
          at::_batch_norm_impl_index_backward(holder.way, x, g, gain, norm.mean->value, norm.variance->value, mean,
                                              inverse, /*train=*/true, norm.epsilon, {true, true, true}, saved[4]);
    } else {
      auto sums = at::zeros_like(mean), products = at::zeros_like(mean);
      dgain = dbias = sums;
      if (x.size(0) > 0)
        std::tie(sums, products, dgain, dbias) =
            at::batch_norm_backward_reduce(g, x, mean, inverse, gain, true, true, true);
      const auto all_2C = (*holder.replicas)(at::cat({sums, products})).sum(0).view({2, -1});
      dx = x.size(0) > 0 ? at::batch_norm_backward_elemt(g, x, mean, inverse, gain, all_2C[0], all_2C[1], saved[4])
                         : at::empty_like(x);
    }
    norm.gain->gradient.add(dgain);
    norm.bias->gradient.add(dbias);
    return {dx, {}, context->saved_data["residual"].toBool() ? g : at::Tensor(), {}};
  }
};

}  // namespace

at::Tensor batch_norm_card(const at::Tensor& x, const BatchNorm& norm, const Pass& pass, bool relu,
                           const at::Tensor& residual) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const auto added = residual.defined() ? std::optional(residual.contiguous(last)) : std::nullopt;
  return CardFunction::apply(x.contiguous(last), norm.gain->value, added,
                             c10::make_intrusive<Holder>(norm, pass.replicas, relu));
}

}  // namespace trireme
