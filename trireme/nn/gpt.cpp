// GPT-2: token and position embeddings, pre-norm transformer blocks, a final norm and a head tied to the token
// embedding. Names and layouts are those of GPT-2's published files, so that no conversion is ever needed.
// Dims: B batch, T tokens, C width, H heads, D width of a head, V vocabulary.
#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/nn/functions.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Embedding final : public Layer {
 public:
  Embedding(const ModelConfig& config, int64_t vocab)
      : Layer("embedding"), width_(config.width), context_(config.context), dropout_(config.dropout) {
    tokens_ = add("wte.weight", {vocab, config.width}, Initial::normal(0.02));
    positions_ = add("wpe.weight", {config.context, config.width}, Initial::normal(0.02));
  }

  const ParameterPtr& tokens() const { return tokens_; }

  at::Tensor forward(const at::Tensor& ids_BT, const Pass& pass) override {
    const int64_t first = pass.cache ? pass.cache->length : 0, count = ids_BT.size(1);
    if (first + count > context_)
      fail("a sequence of {} tokens does not fit model.context = {}", first + count, context_);
    const auto places_1T = at::arange(first, first + count, ids_BT.options()).unsqueeze(0);
    auto x_BTC = embedding(ids_BT, tokens_) + embedding(places_1T, positions_);
    return pass.training ? dropout(x_BTC, dropout_, pass.dropout.with(name_), pass.samples) : x_BTC;
  }

  LayerSpec spec() const override {
    LayerSpec spec;
    spec.name = name_;
    const auto elements = static_cast<double>(context_ * width_);
    spec.forward_flops = elements;
    spec.backward_flops = 2 * elements;
    spec.depth = 1;
    spec.parameters = tokens_->value.numel() + positions_->value.numel();
    spec.activations = context_;
    spec.output = context_ * width_;
    return spec;
  }

 private:
  int64_t width_, context_;
  double dropout_;
  ParameterPtr tokens_, positions_;
};

class Block final : public Layer {
 public:
  Block(const ModelConfig& config, int64_t index)
      : Layer(fmt::format("h.{}", index)),
        index_(index),
        width_(config.width),
        heads_(config.heads),
        context_(config.context),
        dropout_(config.dropout) {
    const int64_t C = width_;
    const auto plain = Initial::normal(0.02);
    // Smaller where the residual stream of many blocks adds up.
    const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
    norm1_gain_ = add(name_ + ".ln_1.weight", {C}, Initial::ones());
    norm1_bias_ = add(name_ + ".ln_1.bias", {C}, Initial::zeros());
    qkv_weight_ = add(name_ + ".attn.c_attn.weight", {C, 3 * C}, plain);
    qkv_bias_ = add(name_ + ".attn.c_attn.bias", {3 * C}, Initial::zeros());
    attention_weight_ = add(name_ + ".attn.c_proj.weight", {C, C}, residual);
    attention_bias_ = add(name_ + ".attn.c_proj.bias", {C}, Initial::zeros());
    norm2_gain_ = add(name_ + ".ln_2.weight", {C}, Initial::ones());
    norm2_bias_ = add(name_ + ".ln_2.bias", {C}, Initial::zeros());
    up_weight_ = add(name_ + ".mlp.c_fc.weight", {C, 4 * C}, plain);
    up_bias_ = add(name_ + ".mlp.c_fc.bias", {4 * C}, Initial::zeros());
    down_weight_ = add(name_ + ".mlp.c_proj.weight", {4 * C, C}, residual);
    down_bias_ = add(name_ + ".mlp.c_proj.bias", {C}, Initial::zeros());
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass& pass) override {
    auto y_BTC = attention(layer_norm(x_BTC, norm1_gain_, norm1_bias_), pass);
    y_BTC = linear(y_BTC, attention_weight_, attention_bias_, WeightLayout::in_out);
    const auto middle_BTC = x_BTC + maybe_drop(y_BTC, "attn.c_proj", pass);
    auto z_BTC = linear(layer_norm(middle_BTC, norm2_gain_, norm2_bias_), up_weight_, up_bias_, WeightLayout::in_out);
    z_BTC = linear(gelu_tanh(z_BTC), down_weight_, down_bias_, WeightLayout::in_out);
    return middle_BTC + maybe_drop(z_BTC, "mlp.c_proj", pass);
  }

  LayerSpec spec() const override {
    const auto T = static_cast<double>(context_), C = static_cast<double>(width_), H = static_cast<double>(heads_);
    LayerSpec spec;
    spec.name = name_;
    // Four products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
    spec.forward_flops = product_flops(T, C, 3 * C) + product_flops(T, C, C) + 2 * product_flops(T, C, 4 * C) +
                         2 * product_flops(T, C, T);
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth =
        2 * product_depth(C) + product_depth(4 * C) + product_depth(C / H) + product_depth(T) + 4 * std::log2(C);
    for (const auto& parameter : parameters_) spec.parameters += parameter->value.numel();
    // Kept: inputs of two norms, of four products, q k v (in the first product's output), gelu's input.
    spec.activations = context_ * width_ * (2 + 1 + 3 + 1 + 1 + 4 + 4);
    spec.output = context_ * width_;
    return spec;
  }

 private:
  at::Tensor maybe_drop(const at::Tensor& x, const char* site, const Pass& pass) const {
    return pass.training ? dropout(x, dropout_, pass.dropout.with(name_).with(site), pass.samples) : x;
  }

  at::Tensor attention(const at::Tensor& x_BTC, const Pass& pass) {
    const int64_t B = x_BTC.size(0), T = x_BTC.size(1), D = width_ / heads_;
    // Split before the heads are moved forward: the backward pass then joins the three gradients in one copy.
    const auto qkv = linear(x_BTC, qkv_weight_, qkv_bias_, WeightLayout::in_out).split(width_, 2);
    const auto by_head = [&](const at::Tensor& t_BTC) { return t_BTC.view({B, T, heads_, D}).transpose(1, 2); };
    const auto q_BHTD = by_head(qkv[0]);
    auto k_BHTD = by_head(qkv[1]), v_BHTD = by_head(qkv[2]);
    if (pass.cache) extend(*pass.cache, k_BHTD, v_BHTD);
    at::Tensor y_BHTD;
    if (pass.training && dropout_ > 0) {
      y_BHTD = attention_with_dropout(q_BHTD, k_BHTD, v_BHTD, pass);
    } else {
      // torch's causal mask starts at the first key; behind cached tokens it must start at the last ones.
      const int64_t S = k_BHTD.size(2);
      const auto seen_TS = T > 1 && S > T
                               ? std::optional(at::ones({T, S}, q_BHTD.options().dtype(at::kBool)).tril(S - T))
                               : std::nullopt;
      y_BHTD = at::scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, seen_TS, 0.0, /*is_causal=*/T > 1 && S == T);
    }
    return y_BHTD.transpose(1, 2).reshape({B, T, width_});
  }

  // Written out, because torch's fused attention draws its own masks.
  at::Tensor attention_with_dropout(const at::Tensor& q_BHTD, const at::Tensor& k_BHTD, const at::Tensor& v_BHTD,
                                    const Pass& pass) {
    const int64_t T = q_BHTD.size(2);
    if (!future_TT_.defined() || future_TT_.size(0) != T || future_TT_.device() != q_BHTD.device()) {
      future_TT_ = at::ones({T, T}, q_BHTD.options().dtype(at::kBool)).triu(1);
    }
    auto weights_BHTT =
        at::matmul(q_BHTD, k_BHTD.transpose(2, 3)) * (1 / std::sqrt(static_cast<double>(q_BHTD.size(3))));
    weights_BHTT = at::softmax(weights_BHTT.masked_fill(future_TT_, -std::numeric_limits<double>::infinity()), -1);
    return at::matmul(maybe_drop(weights_BHTT, "attn", pass), v_BHTD);
  }

  void extend(KeyValueCache& cache, at::Tensor& k_BHTD, at::Tensor& v_BHTD) const {
    if (cache.layers.size() <= static_cast<size_t>(index_)) cache.layers.resize(static_cast<size_t>(index_) + 1);
    auto& [keys, values] = cache.layers[static_cast<size_t>(index_)];
    if (keys.defined()) {
      k_BHTD = at::cat({keys, k_BHTD}, 2);
      v_BHTD = at::cat({values, v_BHTD}, 2);
    }
    keys = k_BHTD;
    values = v_BHTD;
  }

  int64_t index_, width_, heads_, context_;
  double dropout_;
  at::Tensor future_TT_;  // true where a token would look ahead
  ParameterPtr norm1_gain_, norm1_bias_, qkv_weight_, qkv_bias_, attention_weight_, attention_bias_;
  ParameterPtr norm2_gain_, norm2_bias_, up_weight_, up_bias_, down_weight_, down_bias_;
};

class Head final : public Layer {
 public:
  Head(const ModelConfig& config, const ParameterPtr& tokens)
      : Layer("head"), width_(config.width), context_(config.context) {
    gain_ = add("ln_f.weight", {config.width}, Initial::ones());
    bias_ = add("ln_f.bias", {config.width}, Initial::zeros());
    tokens_ = share(tokens);
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass&) override {
    return linear(layer_norm(x_BTC, gain_, bias_), tokens_, nullptr, WeightLayout::out_in);
  }

  LayerSpec spec() const override {
    const int64_t vocab = tokens_->value.size(0);
    LayerSpec spec;
    spec.name = name_;
    spec.forward_flops =
        product_flops(static_cast<double>(context_), static_cast<double>(width_), static_cast<double>(vocab));
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth = product_depth(static_cast<double>(width_)) + std::log2(static_cast<double>(width_));
    spec.parameters = gain_->value.numel() + bias_->value.numel();
    spec.tied = tokens_->value.numel();
    spec.activations = context_ * (2 * width_ + vocab);
    spec.output = context_ * vocab;
    return spec;
  }

 private:
  int64_t width_, context_;
  ParameterPtr gain_, bias_, tokens_;
};

}  // namespace

std::unique_ptr<Model> build_gpt(const ModelConfig& config, int64_t vocab) {
  auto model = std::make_unique<Model>();
  auto embedding = std::make_unique<Embedding>(config, vocab);
  auto head = std::make_unique<Head>(config, embedding->tokens());
  model->layers.push_back(std::move(embedding));
  for (int64_t i = 0; i < config.layers; ++i) model->layers.push_back(std::make_unique<Block>(config, i));
  model->layers.push_back(std::move(head));
  return model;
}

}  // namespace trireme
