// GPT-2: token and position embeddings, pre-norm transformer blocks, a final norm and a head tied to the token
// embedding. Names and layouts are those of GPT-2's published files, so that no conversion is ever needed.
// Dims: B batch, T tokens, C width, H heads, D width of a head, V vocabulary.
#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/attention.h"
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
    const auto& restarting_BT = pass.documents.positions_BT;
    const auto places =
        restarting_BT.defined() ? restarting_BT : at::arange(first, first + count, ids_BT.options()).unsqueeze(0);
    auto x_BTC = embedding(ids_BT, tokens_) + embedding(places, positions_);
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
        width_(config.width),
        heads_(config.heads),
        context_(config.context),
        epsilon_(config.norm_epsilon),
        dropout_(config.dropout),
        attention_(index, name_, config.dropout) {
    const int64_t C = width_;
    const auto plain = Initial::normal(0.02);
    // Smaller where the residual stream of many blocks adds up.
    const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
    const auto project = [&](const char* name, int64_t inputs, int64_t outputs, Initial initial) {
      return add_projection(name_ + "." + name, inputs, outputs, WeightLayout::in_out, /*bias=*/true, initial, config);
    };
    norm1_gain_ = add(name_ + ".ln_1.weight", {C}, Initial::ones());
    norm1_bias_ = add(name_ + ".ln_1.bias", {C}, Initial::zeros());
    qkv_ = project("attn.c_attn", C, 3 * C, plain);
    out_ = project("attn.c_proj", C, C, residual);
    norm2_gain_ = add(name_ + ".ln_2.weight", {C}, Initial::ones());
    norm2_bias_ = add(name_ + ".ln_2.bias", {C}, Initial::zeros());
    up_ = project("mlp.c_fc", C, 4 * C, plain);
    down_ = project("mlp.c_proj", 4 * C, C, residual);
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass& pass) override {
    const auto y_BTC = project(attention(layer_norm(x_BTC, norm1_gain_, norm1_bias_, epsilon_), pass), out_);
    const auto middle_BTC = x_BTC + maybe_drop(y_BTC, "attn.c_proj", pass);
    auto z_BTC = project(layer_norm(middle_BTC, norm2_gain_, norm2_bias_, epsilon_), up_);
    z_BTC = project(gelu_tanh(z_BTC), down_);
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
    const auto qkv = project(x_BTC, qkv_).split(width_, 2);
    const auto by_head = [&](const at::Tensor& t_BTC) { return t_BTC.view({B, T, heads_, D}).transpose(1, 2); };
    return attention_(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]), pass);
  }

  int64_t width_, heads_, context_;
  double epsilon_, dropout_;
  Attention attention_;
  ParameterPtr norm1_gain_, norm1_bias_, norm2_gain_, norm2_bias_;
  Projection qkv_, out_, up_, down_;
};

class Head final : public Layer {
 public:
  Head(const ModelConfig& config, const ParameterPtr& tokens)
      : Layer("head"),
        width_(config.width),
        context_(config.context),
        epsilon_(config.norm_epsilon),
        untied_(config.untied) {
    gain_ = add("ln_f.weight", {config.width}, Initial::ones());
    bias_ = add("ln_f.bias", {config.width}, Initial::zeros());
    tokens_ =
        untied_ ? add("lm_head.weight", {tokens->value.size(0), config.width}, Initial::normal(0.02)) : share(tokens);
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass&) override {
    return linear(layer_norm(x_BTC, gain_, bias_, epsilon_), tokens_, nullptr, WeightLayout::out_in);
  }

  LayerSpec spec() const override {
    const int64_t vocab = tokens_->value.size(0);
    LayerSpec spec;
    spec.name = name_;
    spec.forward_flops =
        product_flops(static_cast<double>(context_), static_cast<double>(width_), static_cast<double>(vocab));
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth = product_depth(static_cast<double>(width_)) + std::log2(static_cast<double>(width_));
    spec.parameters = gain_->value.numel() + bias_->value.numel() + (untied_ ? tokens_->value.numel() : 0);
    spec.tied = untied_ ? 0 : tokens_->value.numel();
    spec.activations = context_ * (2 * width_ + vocab);
    spec.output = context_ * vocab;
    return spec;
  }

 private:
  int64_t width_, context_;
  double epsilon_;
  bool untied_;
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
