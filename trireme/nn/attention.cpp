#include "trireme/nn/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <optional>

#include "trireme/nn/functions.h"

namespace trireme {

at::Tensor Attention::operator()(const at::Tensor& q_BHTD, at::Tensor k_BGTD, at::Tensor v_BGTD, const Pass& pass) {
  const int64_t B = q_BHTD.size(0), H = q_BHTD.size(1), T = q_BHTD.size(2), D = q_BHTD.size(3);
  if (pass.cache) extend(*pass.cache, k_BGTD, v_BGTD);
  at::Tensor y_BHTD;
  if (pass.training && dropout_ > 0) {
    y_BHTD = with_dropout(q_BHTD, k_BGTD, v_BGTD, pass);
  } else {
    const int64_t S = k_BGTD.size(2);
    std::optional<at::Tensor> seen;
    if (pass.documents.seen_B1TT.defined()) {
      seen = pass.documents.seen_B1TT;
    } else if (T > 1 && S > T) {
      // torch's causal mask starts at the first key; behind cached tokens it must start at the last ones.
      seen = at::ones({T, S}, q_BHTD.options().dtype(at::kBool)).tril(S - T);
    }
    y_BHTD = at::scaled_dot_product_attention(q_BHTD, k_BGTD, v_BGTD, seen, 0.0, /*is_causal=*/T > 1 && !seen,
                                              /*scale=*/std::nullopt, /*enable_gqa=*/k_BGTD.size(1) != H);
  }
  return y_BHTD.transpose(1, 2).reshape({B, T, H * D});
}

// Written out, because torch's fused attention draws its own masks.
at::Tensor Attention::with_dropout(const at::Tensor& q_BHTD, const at::Tensor& k_BGTD, const at::Tensor& v_BGTD,
                                   const Pass& pass) {
  const int64_t H = q_BHTD.size(1), G = k_BGTD.size(1), T = q_BHTD.size(2);
  if (!future_TT_.defined() || future_TT_.size(0) != T || future_TT_.device() != q_BHTD.device()) {
    future_TT_ = at::ones({T, T}, q_BHTD.options().dtype(at::kBool)).triu(1);
  }
  const auto hidden = pass.documents.seen_B1TT.defined() ? pass.documents.seen_B1TT.logical_not() : future_TT_;
  const auto for_all = [&](const at::Tensor& t) { return G == H ? t : at::repeat_interleave(t, H / G, 1); };
  const auto k_BHTD = for_all(k_BGTD), v_BHTD = for_all(v_BGTD);
  auto weights_BHTT = at::matmul(q_BHTD, k_BHTD.transpose(2, 3)) * (1 / std::sqrt(static_cast<double>(q_BHTD.size(3))));
  weights_BHTT = at::softmax(weights_BHTT.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
  const auto kept_BHTT = dropout(weights_BHTT, dropout_, pass.dropout.with(name_).with("attn"), pass.samples);
  return at::matmul(kept_BHTT, v_BHTD);
}

void Attention::extend(KeyValueCache& cache, at::Tensor& k_BGTD, at::Tensor& v_BGTD) const {
  if (cache.layers.size() <= static_cast<size_t>(index_)) cache.layers.resize(static_cast<size_t>(index_) + 1);
  auto& [keys, values] = cache.layers[static_cast<size_t>(index_)];
  if (keys.defined()) {
    k_BGTD = at::cat({keys, k_BGTD}, 2);
    v_BGTD = at::cat({values, v_BGTD}, 2);
  }
  keys = k_BGTD;
  values = v_BGTD;
}

Documents documents_from(const at::Tensor& starts_BT) {
  const int64_t T = starts_BT.size(1);
  const auto same_BTT = starts_BT.unsqueeze(2) == starts_BT.unsqueeze(1);
  return {at::arange(T, starts_BT.options()).unsqueeze(0) - starts_BT, same_BTT.tril().unsqueeze(1)};
}

}  // namespace trireme
