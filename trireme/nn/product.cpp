#include "trireme/nn/product.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace trireme {

namespace {

using OneDnnLinear = at::Tensor(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                c10::string_view activation, torch::List<std::optional<at::Scalar>> scalars,
                                std::optional<c10::string_view> algorithm);

// torch registers oneDNN's product for its compiler; a build without oneDNN has none.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& onednn_linear() {
  static const auto found = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    const auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!handle) return std::nullopt;
    return handle->typed<OneDnnLinear>();
  }();
  return found;
}

}  // namespace

at::Tensor product(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias) {
  if (x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0 && onednn_linear()) {
    const auto optional_bias = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    return onednn_linear()->call(x, matrix.t(), optional_bias, "none", torch::List<std::optional<at::Scalar>>(),
                                 std::nullopt);
  }
  return bias.defined() ? at::addmm(bias, x, matrix) : at::mm(x, matrix);
}

}  // namespace trireme
