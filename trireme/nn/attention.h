// Causal attention of queries to keys and values: what GPT and Llama share. Several query heads may read the same keys
// (grouped queries); tokens of packed documents see their own document only; while generating, keys and values are
// kept for the tokens to come.
// Dims: B batch, T tokens, S tokens with those of the cache, H heads of the queries, G heads of the keys, D their
// width.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/nn/layer.h"

namespace trireme {

class Attention final {
 public:
  // `index` is the layer's place in the cache, `name` whose dropout masks these are.
  Attention(int64_t index, std::string name, double dropout)
      : index_(index), name_(std::move(name)), dropout_(dropout) {}

  // [B, T, H·D].
  at::Tensor operator()(const at::Tensor& q_BHTD, at::Tensor k_BGTD, at::Tensor v_BGTD, const Pass& pass);

 private:
  at::Tensor with_dropout(const at::Tensor& q_BHTD, const at::Tensor& k_BGTD, const at::Tensor& v_BGTD,
                          const Pass& pass);
  void extend(KeyValueCache& cache, at::Tensor& k_BGTD, at::Tensor& v_BGTD) const;

  int64_t index_;
  std::string name_;
  double dropout_;
  at::Tensor future_TT_;  // true where a token would look ahead
};

// Documents from the place of each token's document in its sample, int64 [B, T].
Documents documents_from(const at::Tensor& starts_BT);

}  // namespace trireme
