#include "trireme/api/shown_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme {

namespace {

// A tensor of its own on the slot's memory, which it keeps alive. No view of the bucket: zero_grad() detaches gradients
// in place, which torch refuses for views.
at::Tensor own_tensor(const at::Tensor& view) {
  return at::from_blob(view.data_ptr(), view.sizes(), view.strides(), [view](void*) {}, view.options());
}

}  // namespace

ShownGradients::ShownGradients(const ParameterList& parameters)
    : parameters_(parameters), shown_(parameters.size()), has_(parameters.size(), 0) {}

ShownGradients::ShownGradients(const ParameterList& parameters, const ShownGradients& before)
    : ShownGradients(parameters) {
  resets_ = before.resets_;
  expects_used_ = before.expects_used_;
  used_ = before.used_;
  warned_ = before.warned_;
  // The gradients that were shown stay as they are: they are taken over as if their user had replaced them.
  if (before.values_.empty()) return;
  values_.resize(parameters_.size());
  versions_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (size_t j = 0; j < before.parameters_.size(); ++j) {
      if (!parameters_[i]->value.is_same(before.parameters_[j]->value)) continue;
      values_[i] = before.values_[j];
      versions_[i] = before.versions_[j];
    }
  }
}

void ShownGradients::show(bool complete) {
  const c10::NoGradGuard no_grad;
  const bool watches = complete && !resets_ && !expects_used_;
  values_.resize(watches ? parameters_.size() : 0);
  versions_.resize(values_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = *parameters_[i];
    if (!has_[i]) {
      parameter.value.mutable_grad().reset();
      continue;
    }
    shown_[i] = own_tensor(parameter.gradient.view);
    parameter.value.mutable_grad() = shown_[i];
    if (!watches) continue;
    if (!values_[i].defined()) values_[i] = at::empty_like(parameter.value.detach());
    values_[i].copy_(parameter.value);
    versions_[i] = static_cast<uint64_t>(parameter.value._version());
  }
}

void ShownGradients::take() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = *parameters_[i];
    const auto gradient = parameter.value.grad();
    resets_ = resets_ || (has_[i] && shown_[i].defined() && was_reset(i));
    has_[i] = gradient.defined();
    if (!gradient.defined() || gradient.is_same(shown_[i])) continue;
    if (gradient.sizes() != parameter.value.sizes())
      refuse("the gradient of {} has shape [{}], the parameter [{}]", parameter.name, fmt::join(gradient.sizes(), ", "),
             fmt::join(parameter.value.sizes(), ", "));
    parameter.gradient.view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  }
}

// zero_grad() leaves no gradient, or zeros of which it has made a tensor with a history of its own.
bool ShownGradients::was_reset(size_t i) const {
  const auto gradient = parameters_[i]->value.grad();
  return !gradient.defined() || (gradient.is_same(shown_[i]) && torch::autograd::impl::get_autograd_meta(gradient));
}

bool ShownGradients::was_used(size_t i) const {
  if (expects_used_) return used_;
  if (values_.empty() || !values_[i].defined()) return false;
  if (static_cast<uint64_t>(parameters_[i]->value._version()) != versions_[i]) return true;
  const auto now = parameters_[i]->value.detach();
  return values_[i].options().type_equal(now.options()) ? !at::equal(values_[i], now) : true;
}

// In a loop that resets nothing some gradients have been used and others have not: it is not sure what is meant.
void ShownGradients::warn_of_unused() {
  if (warned_ || resets_ || expects_used_ || values_.empty()) return;
  const Parameter* unused = nullptr;
  bool any_used = false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_[i] || !values_[i].defined()) continue;
    if (was_used(i)) {
      any_used = true;
    } else {
      unused = parameters_[i].get();
    }
  }
  if (!any_used || !unused) return;
  warned_ = true;
  log::warn(
      "no optimizer has changed {}, and others it has: its gradient is kept, and the next is added to it. Call "
      "zero_grad() after each step where that is not meant",
      unused->name);
}

void ShownGradients::hide(bool first, double weight) {
  const c10::NoGradGuard no_grad;
  take();
  if (first) warn_of_unused();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& parameter = *parameters_[i];
    if (first && has_[i] && !resets_ && was_used(i)) has_[i] = 0;
    parameter.gradient.fresh = !has_[i];
    if (has_[i] && weight != 1) parameter.gradient.view.mul_(weight);
    parameter.value.mutable_grad().reset();
  }
  used_ = false;
}

void ShownGradients::reset(bool set_to_none) {
  const c10::NoGradGuard no_grad;
  resets_ = true;
  for (const auto& parameter : parameters_) {
    auto& gradient = parameter->value.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.zero_();
    }
  }
}

}  // namespace trireme
