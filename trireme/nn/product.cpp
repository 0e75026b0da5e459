#include "trireme/nn/product.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <regex>

// torch exports this product but no header for it. Weak: a torch without it leaves the address empty.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& out, float beta,
                                         float alpha);
}

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

// Whether torch's oneDNN product is there and takes fp32, which not every version's does.
bool onednn_writes_into() {
  static const bool works = [] {
    if (!at::native::mkldnn_matmul) return false;
    const auto one = at::ones({16, 16}), out = at::zeros({16, 16});
    try {
      at::native::mkldnn_matmul(one, one, out, 0, 1);
    } catch (const c10::Error&) {
      return false;
    }
    return at::equal(out, at::full({16, 16}, 16.0));
  }();
  return works;
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

void product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool add) {
  if (out.is_cpu() && out.scalar_type() == at::kFloat && left.numel() > 0 && out.numel() > 0 && onednn_writes_into()) {
    at::native::mkldnn_matmul(left, right, out, add ? 1 : 0, 1);
    return;
  }
  auto target = out;
  at::addmm_out(target, out, left, right, add ? 1 : 0, 1);
}

std::string product_library() {
  const auto config = at::show_config();
  std::smatch found;
  if (onednn_linear() && onednn_writes_into()) {
    const bool versioned = std::regex_search(config, found, std::regex("MKL-DNN v([0-9.]+)"));
    return versioned ? "oneDNN " + found[1].str() : "oneDNN";
  }
  const bool mkl = std::regex_search(config, found, std::regex("Math Kernel Library Version ([0-9]+[0-9.]*)"));
  return mkl ? "MKL " + found[1].str() : "torch's own";
}

}  // namespace trireme
