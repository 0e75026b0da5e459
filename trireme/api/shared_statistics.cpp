#include "trireme/api/shared_statistics.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "trireme/nn/batch_norm.h"

namespace trireme {

namespace {

// Of torch's dispatch keys the one that torch itself leaves free: what is registered for it runs only on threads that
// include it, before autograd, and everything else falls through at no cost.
constexpr auto our_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local const GatherReplicas* replicas_of_thread = nullptr;

// bf16 statistics would be worth little: they are kept, and computed with, in fp32.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

at::Tensor shared_batch_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_variance, bool training, double momentum,
                             double epsilon, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard below(our_key);
  if (!training) {
    return at::batch_norm(x, weight, bias, running_mean, running_variance, training, momentum, epsilon, cudnn_enabled);
  }
  const auto given = [](const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); };
  const auto options = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const int64_t C = x.size(1);
  NormTensors norm;
  norm.gain_C = given(weight) ? widened(*weight) : at::ones({C}, options);
  norm.bias_C = given(bias) ? widened(*bias) : at::zeros({C}, options);
  norm.running_mean_C = given(running_mean) ? widened(*running_mean) : at::zeros({C}, options);
  norm.running_variance_C = given(running_variance) ? widened(*running_variance) : at::ones({C}, options);
  norm.epsilon = epsilon;
  norm.momentum = momentum;  // the module counts its batches itself
  auto y = batch_norm(x.reshape({x.size(0), C, -1, 1}), norm, *replicas_of_thread).view_as(x);
  if (given(running_mean) && !norm.running_mean_C.is_same(*running_mean)) {
    running_mean->copy_(norm.running_mean_C);
    running_variance->copy_(norm.running_variance_C);
  }
  return y;
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) { library.impl("batch_norm", shared_batch_norm); }

}  // namespace

SharedStatistics::SharedStatistics(const GatherReplicas* replicas) : before_(replicas_of_thread) {
  if (!replicas) return;
  replicas_of_thread = replicas;
  included_.emplace(our_key);
}

SharedStatistics::~SharedStatistics() { replicas_of_thread = before_; }

}  // namespace trireme
