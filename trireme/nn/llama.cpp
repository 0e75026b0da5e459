// Llama, as spec/models/llama.cpp describes it.
// Dims: B batch, T tokens, C width, H heads of the queries, G of the keys and values, D width of a head.
#include <ATen/ATen.h>

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
  Embedding(LayerParts parts, const ModelConfig& config)
      : Layer(std::move(parts)),
        context_(config.context),
        dropout_(config.dropout),
        tokens_(parameter("model.embed_tokens.weight")) {}

  at::Tensor forward(const at::Tensor& ids_BT, const Pass& pass) override {
    const int64_t count = (pass.cache ? pass.cache->length : 0) + ids_BT.size(1);
    if (count > context_) fail("a sequence of {} tokens does not fit model.context = {}", count, context_);
    const auto x_BTC = embedding(ids_BT, tokens_);
    return pass.training ? dropout(x_BTC, dropout_, pass.dropout.with(name()), pass.samples) : x_BTC;
  }

 private:
  int64_t context_;
  double dropout_;
  ParameterPtr tokens_;
};

class Block final : public Layer {
 public:
  Block(LayerParts parts, const ModelConfig& config, int64_t index, std::shared_ptr<Angles> angles)
      : Layer(std::move(parts)),
        width_(config.width),
        heads_(config.heads),
        key_heads_(config.kv_heads > 0 ? config.kv_heads : config.heads),
        epsilon_(config.norm_epsilon),
        dropout_(config.dropout),
        attention_(index, name(), config.dropout),
        angles_(std::move(angles)) {
    const auto prefix = "model." + name() + ".";
    const auto project = [&](const char* part) { return projection(prefix + part, WeightLayout::out_in, config); };
    norm1_gain_ = parameter(prefix + "input_layernorm.weight");
    q_ = project("self_attn.q_proj");
    k_ = project("self_attn.k_proj");
    v_ = project("self_attn.v_proj");
    out_ = project("self_attn.o_proj");
    norm2_gain_ = parameter(prefix + "post_attention_layernorm.weight");
    gate_ = project("mlp.gate_proj");
    up_ = project("mlp.up_proj");
    down_ = project("mlp.down_proj");
  }

  at::Tensor forward(const at::Tensor& x_BTC, const Pass& pass) override {
    const auto y_BTC = project(attention(rms_norm(x_BTC, norm1_gain_, epsilon_), pass), out_);
    const auto middle_BTC = x_BTC + maybe_drop(y_BTC, "self_attn.o_proj", pass);
    const auto parts = project(rms_norm(middle_BTC, norm2_gain_, epsilon_), {&gate_, &up_});
    const auto z_BTC = project(swiglu(parts[0], parts[1]), down_);
    return middle_BTC + maybe_drop(z_BTC, "mlp.down_proj", pass);
  }

 private:
  at::Tensor maybe_drop(const at::Tensor& x, const char* site, const Pass& pass) const {
    return pass.training ? dropout(x, dropout_, pass.dropout.with(name()).with(site), pass.samples) : x;
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

  int64_t width_, heads_, key_heads_;
  double epsilon_, dropout_;
  Attention attention_;
  std::shared_ptr<Angles> angles_;
  ParameterPtr norm1_gain_, norm2_gain_;
  Projection q_, k_, v_, out_, gate_, up_, down_;
};

class Head final : public Layer {
 public:
  Head(LayerParts parts, const ModelConfig& config)
      : Layer(std::move(parts)),
        epsilon_(config.norm_epsilon),
        gain_(parameter("model.norm.weight")),
        tokens_(parameter(config.tied ? "model.embed_tokens.weight" : "lm_head.weight")) {}

  at::Tensor forward(const at::Tensor& x_BTC, const Pass&) override {
    return linear(rms_norm(x_BTC, gain_, epsilon_), tokens_, nullptr, WeightLayout::out_in);
  }

 private:
  double epsilon_;
  ParameterPtr gain_, tokens_;
};

}  // namespace

Layers build_llama(const ModelParts& parts, const ModelConfig& config) {
  const auto angles = std::make_shared<Angles>(config);
  Layers layers{std::make_shared<Embedding>(parts.front(), config)};
  for (size_t i = 1; i + 1 < parts.size(); ++i)
    layers.push_back(std::make_shared<Block>(parts[i], config, static_cast<int64_t>(i) - 1, angles));
  layers.push_back(std::make_shared<Head>(parts.back(), config));
  return layers;
}

}  // namespace trireme
