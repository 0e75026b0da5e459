// GPT-2, as spec/models/gpt.cpp describes it.
// Dims: B batch, T tokens, C width, H heads, D width of a head, V vocabulary.
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/functions.h"
#include "trireme/nn/model.h"

namespace trireme {

namespace {

class Embedding final : public Layer {
 public:
  Embedding(LayerParts parts, const ModelConfig& config)
      : Layer(std::move(parts)),
        context_(config.context),
        dropout_(config.dropout),
        tokens_(parameter("wte.weight")),
        positions_(parameter("wpe.weight")) {}

  at::Tensor forward(const at::Tensor& ids_BT, const Pass& pass) override {
    const int64_t first = pass.cache ? pass.cache->length : 0, count = ids_BT.size(1);
    if (first + count > context_)
      fail("a sequence of {} tokens does not fit model.context = {}", first + count, context_);
    const auto& restarting_BT = pass.documents.positions_BT;
    const auto places =
        restarting_BT.defined() ? restarting_BT : at::arange(first, first + count, ids_BT.options()).unsqueeze(0);
    auto x_BTC = embedding(ids_BT, tokens_) + embedding(places, positions_);
    return pass.training ? dropout(x_BTC, dropout_, pass.dropout.with(name()), pass.samples) : x_BTC;
  }

 private:
  int64_t context_;
  double dropout_;
  ParameterPtr tokens_, positions_;
};

class Block final : public Layer {
 public:
  Block(LayerParts parts, const ModelConfig& config, int64_t index)
      : Layer(std::move(parts)),
        width_(config.width),
        heads_(config.heads),
        epsilon_(config.norm_epsilon),
        dropout_(config.dropout),
        attention_(index, name(), config.dropout) {
    const auto own = [&](const char* part) { return parameter(name() + "." + part); };
    const auto project = [&](const char* part) {
      return projection(name() + "." + part, WeightLayout::in_out, config);
    };
    norm1_gain_ = own("ln_1.weight");
    norm1_bias_ = own("ln_1.bias");
    qkv_ = project("attn.c_attn");
    out_ = project("attn.c_proj");
    norm2_gain_ = own("ln_2.weight");
    norm2_bias_ = own("ln_2.bias");
    up_ = project("mlp.c_fc");
    down_ = project("mlp.c_proj");
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass& pass) override {
    const auto y_BTC = project(attention(layer_norm(x_BTC, norm1_gain_, norm1_bias_, epsilon_), pass), out_);
    const auto middle_BTC = x_BTC + maybe_drop(y_BTC, "attn.c_proj", pass);
    auto z_BTC = project(layer_norm(middle_BTC, norm2_gain_, norm2_bias_, epsilon_), up_);
    z_BTC = project(gelu_tanh(z_BTC), down_);
    return middle_BTC + maybe_drop(z_BTC, "mlp.c_proj", pass);
  }

 private:
  at::Tensor maybe_drop(const at::Tensor& x, const char* site, const Pass& pass) const {
    return pass.training ? dropout(x, dropout_, pass.dropout.with(name()).with(site), pass.samples) : x;
  }

  at::Tensor attention(const at::Tensor& x_BTC, const Pass& pass) {
    const int64_t B = x_BTC.size(0), T = x_BTC.size(1), D = width_ / heads_;
    // Split before the heads are moved forward: the backward pass then joins the three gradients in one copy.
    const auto qkv = project(x_BTC, qkv_).split(width_, 2);
    const auto by_head = [&](const at::Tensor& t_BTC) { return t_BTC.view({B, T, heads_, D}).transpose(1, 2); };
    return attention_(by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2]), pass);
  }

  int64_t width_, heads_;
  double epsilon_, dropout_;
  Attention attention_;
  ParameterPtr norm1_gain_, norm1_bias_, norm2_gain_, norm2_bias_;
  Projection qkv_, out_, up_, down_;
};

class Head final : public Layer {
 public:
  Head(LayerParts parts, const ModelConfig& config)
      : Layer(std::move(parts)),
        epsilon_(config.norm_epsilon),
        gain_(parameter("ln_f.weight")),
        bias_(parameter("ln_f.bias")),
        tokens_(parameter(config.untied ? "lm_head.weight" : "wte.weight")) {}

  at::Tensor forward(const at::Tensor& x_BTC, const Pass&) override {
    return linear(layer_norm(x_BTC, gain_, bias_, epsilon_), tokens_, nullptr, WeightLayout::out_in);
  }

 private:
  double epsilon_;
  ParameterPtr gain_, bias_, tokens_;
};

}  // namespace

Layers build_gpt(const ModelParts& parts, const ModelConfig& config) {
  Layers layers{std::make_shared<Embedding>(parts.front(), config)};
  for (size_t i = 1; i + 1 < parts.size(); ++i)
    layers.push_back(std::make_shared<Block>(parts[i], config, static_cast<int64_t>(i) - 1));
  layers.push_back(std::make_shared<Head>(parts.back(), config));
  return layers;
}

}  // namespace trireme
