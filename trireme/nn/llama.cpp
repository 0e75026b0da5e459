// Llama: token embeddings, pre-norm blocks of grouped-query attention with rotary positions and of SwiGLU, a final
// norm and a head, tied to the embedding or not. Names and layouts are those of Hugging Face's files, so that no
// conversion is ever needed.
// Dims: B batch, T tokens, C width, H heads of the queries, G of the keys and values, D width of a head.
#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/functions.h"
#include "trireme/nn/model.h"
#include "trireme/nn/projection.h"

namespace trireme {

namespace {

// The angles of all positions, made once for the device and the type that they are first asked for.
class Angles {
 public:
  explicit Angles(const ModelConfig& config)
      : positions_(config.context), head_width_(config.width / config.heads), theta_(config.rope_theta) {}

  const Rotations& like(const at::Tensor& x) {
    const bool fits = made_.cosines.defined() && made_.cosines.device() == x.device() &&
                      (made_.cosines.scalar_type() == at::kDouble) == (x.scalar_type() == at::kDouble);
    if (!fits) made_ = make_rotations(positions_, head_width_, theta_, x.options());
    return made_;
  }

 private:
  int64_t positions_, head_width_;
  double theta_;
  Rotations made_;
};

class Embedding final : public Layer {
 public:
  Embedding(const ModelConfig& config, int64_t vocab)
      : Layer("embedding"), width_(config.width), context_(config.context), dropout_(config.dropout) {
    tokens_ = add("model.embed_tokens.weight", {vocab, config.width}, Initial::normal(0.02));
  }

  const ParameterPtr& tokens() const { return tokens_; }

  at::Tensor forward(const at::Tensor& ids_BT, const Pass& pass) override {
    const int64_t count = (pass.cache ? pass.cache->length : 0) + ids_BT.size(1);
    if (count > context_) fail("a sequence of {} tokens does not fit model.context = {}", count, context_);
    const auto x_BTC = embedding(ids_BT, tokens_);
    return pass.training ? dropout(x_BTC, dropout_, pass.dropout.with(name_), pass.samples) : x_BTC;
  }

  LayerSpec spec() const override {
    LayerSpec spec;
    spec.name = name_;
    spec.backward_flops = static_cast<double>(context_ * width_);
    spec.depth = 1;
    spec.parameters = tokens_->value.numel();
    spec.activations = context_;
    spec.output = context_ * width_;
    return spec;
  }

 private:
  int64_t width_, context_;
  double dropout_;
  ParameterPtr tokens_;
};

class Block final : public Layer {
 public:
  Block(const ModelConfig& config, int64_t index, std::shared_ptr<Angles> angles)
      : Layer(fmt::format("layers.{}", index)),
        width_(config.width),
        heads_(config.heads),
        key_heads_(config.kv_heads > 0 ? config.kv_heads : config.heads),
        hidden_(hidden_width(config)),
        context_(config.context),
        epsilon_(config.norm_epsilon),
        dropout_(config.dropout),
        attention_(index, name_, config.dropout),
        angles_(std::move(angles)) {
    const int64_t C = width_, K = key_heads_ * (width_ / heads_), F = hidden_;
    const auto plain = Initial::normal(0.02);
    // Smaller where the residual stream of many blocks adds up.
    const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
    const auto prefix = "model." + name_;
    const auto project = [&](const char* name, int64_t inputs, int64_t outputs, Initial initial) {
      return add_projection(prefix + "." + name, inputs, outputs, WeightLayout::out_in, /*bias=*/false, initial,
                            config);
    };
    norm1_gain_ = add(prefix + ".input_layernorm.weight", {C}, Initial::ones());
    q_ = project("self_attn.q_proj", C, C, plain);
    k_ = project("self_attn.k_proj", C, K, plain);
    v_ = project("self_attn.v_proj", C, K, plain);
    out_ = project("self_attn.o_proj", C, C, residual);
    norm2_gain_ = add(prefix + ".post_attention_layernorm.weight", {C}, Initial::ones());
    gate_ = project("mlp.gate_proj", C, F, plain);
    up_ = project("mlp.up_proj", C, F, plain);
    down_ = project("mlp.down_proj", F, C, residual);
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass& pass) override {
    const auto y_BTC = project(attention(rms_norm(x_BTC, norm1_gain_, epsilon_), pass), out_);
    const auto middle_BTC = x_BTC + maybe_drop(y_BTC, "self_attn.o_proj", pass);
    const auto parts = project(rms_norm(middle_BTC, norm2_gain_, epsilon_), {&gate_, &up_});
    const auto z_BTC = project(swiglu(parts[0], parts[1]), down_);
    return middle_BTC + maybe_drop(z_BTC, "mlp.down_proj", pass);
  }

  LayerSpec spec() const override {
    const auto T = static_cast<double>(context_), C = static_cast<double>(width_), F = static_cast<double>(hidden_);
    const int64_t key_width = key_heads_ * (width_ / heads_);
    const auto K = static_cast<double>(key_width);
    LayerSpec spec;
    spec.name = name_;
    // Seven products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
    spec.forward_flops = 2 * product_flops(T, C, C) + 2 * product_flops(T, C, K) + 3 * product_flops(T, C, F) +
                         2 * product_flops(T, C, T);
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth = 3 * product_depth(C) + product_depth(F) + product_depth(C / static_cast<double>(heads_)) +
                 product_depth(T) + 2 * std::log2(C);
    for (const auto& parameter : parameters_) spec.parameters += parameter->value.numel();
    // Kept: inputs of two norms and of all products, q k v, and the two parts of SwiGLU.
    spec.activations = context_ * (6 * width_ + 2 * key_width + 3 * hidden_);
    spec.output = context_ * width_;
    return spec;
  }

 private:
  at::Tensor maybe_drop(const at::Tensor& x, const char* site, const Pass& pass) const {
    return pass.training ? dropout(x, dropout_, pass.dropout.with(name_).with(site), pass.samples) : x;
  }

  at::Tensor attention(const at::Tensor& x_BTC, const Pass& pass) {
    const int64_t B = x_BTC.size(0), T = x_BTC.size(1), D = width_ / heads_;
    const auto qkv = project(x_BTC, {&q_, &k_, &v_});
    const int64_t first = pass.cache ? pass.cache->length : 0;
    const auto& rotations = angles_->like(x_BTC);
    const auto turned = [&](const at::Tensor& t_BTC, int64_t heads) {
      return rotary(t_BTC.view({B, T, heads, D}), rotations, first, pass.documents.positions_BT).transpose(1, 2);
    };
    return attention_(turned(qkv[0], heads_), turned(qkv[1], key_heads_),
                      qkv[2].view({B, T, key_heads_, D}).transpose(1, 2), pass);
  }

  int64_t width_, heads_, key_heads_, hidden_, context_;
  double epsilon_, dropout_;
  Attention attention_;
  std::shared_ptr<Angles> angles_;
  ParameterPtr norm1_gain_, norm2_gain_;
  Projection q_, k_, v_, out_, gate_, up_, down_;
};

class Head final : public Layer {
 public:
  Head(const ModelConfig& config, int64_t vocab, const ParameterPtr& tokens)
      : Layer("head"), width_(config.width), context_(config.context), epsilon_(config.norm_epsilon) {
    gain_ = add("model.norm.weight", {config.width}, Initial::ones());
    tokens_ = config.tied ? share(tokens) : add("lm_head.weight", {vocab, config.width}, Initial::normal(0.02));
    tied_ = config.tied;
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass&) override {
    return linear(rms_norm(x_BTC, gain_, epsilon_), tokens_, nullptr, WeightLayout::out_in);
  }

  LayerSpec spec() const override {
    const int64_t vocab = tokens_->value.size(0), table = tokens_->value.numel();
    LayerSpec spec;
    spec.name = name_;
    spec.forward_flops =
        product_flops(static_cast<double>(context_), static_cast<double>(width_), static_cast<double>(vocab));
    spec.backward_flops = 2 * spec.forward_flops;
    spec.depth = product_depth(static_cast<double>(width_)) + std::log2(static_cast<double>(width_));
    spec.parameters = gain_->value.numel() + (tied_ ? 0 : table);
    spec.tied = tied_ ? table : 0;
    spec.activations = context_ * (2 * width_ + vocab);
    spec.output = context_ * vocab;
    return spec;
  }

 private:
  int64_t width_, context_;
  double epsilon_;
  bool tied_;
  ParameterPtr gain_, tokens_;
};

}  // namespace

std::unique_ptr<Model> build_llama(const ModelConfig& config, int64_t vocab) {
  auto model = std::make_unique<Model>();
  auto embedding = std::make_unique<Embedding>(config, vocab);
  auto head = std::make_unique<Head>(config, vocab, embedding->tokens());
  auto angles = std::make_shared<Angles>(config);
  model->layers.push_back(std::move(embedding));
  for (int64_t i = 0; i < config.layers; ++i) model->layers.push_back(std::make_unique<Block>(config, i, angles));
  model->layers.push_back(std::move(head));
  return model;
}

}  // namespace trireme
