// Llama: token embeddings, pre-norm blocks of grouped-query attention with rotary positions and of SwiGLU, a final
// norm and a head, tied to the embedding or not. Names and layouts are those of Hugging Face's files, so that no
// conversion is ever needed.
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

// The layers as nn/llama.cpp computes them.

struct BlockSpec {
  double width = 0, dropout = 0;
  replay::AttentionShape attention;
  size_t norm1 = 0, norm2 = 0;
  ProjectionSpec q, k, v, out, gate, up, down;
};

ReplayTensor replay_attention(Replay& pass, const ReplayTensor& x, const BlockSpec& block) {
  const auto qkv = replay::project(pass, x, {block.q, block.k, block.v});
  return replay::attention(pass, replay::rotary(pass, qkv[0]), replay::rotary(pass, qkv[1]), qkv[2], block.attention);
}

ReplayTensor replay_block(Replay& pass, const ReplayTensor& x, const BlockSpec& block) {
  const auto norm = [&](const ReplayTensor& t, size_t gain) { return replay::rms_norm(pass, t, block.width, gain); };
  const auto y = replay::project(pass, replay_attention(pass, norm(x, block.norm1), block), block.out);
  const auto middle = replay::add(pass, x, replay::dropout(pass, y, block.dropout));
  const auto parts = replay::project(pass, norm(middle, block.norm2), {block.gate, block.up});
  const auto z = replay::project(pass, replay::swiglu(pass, parts[0], parts[1]), block.down);
  return replay::add(pass, middle, replay::dropout(pass, z, block.dropout));
}

void describe_embedding(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  auto& layer = table.add_layer("embedding");
  table.add("model.embed_tokens.weight", {vocab, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  layer.output = config.context * config.width;
  layer.backward_flops = static_cast<double>(layer.output);
  layer.depth = 1;
  layer.takes_ids = true;
  layer.replay = [width = static_cast<double>(config.width), probability = config.dropout](Replay& pass,
                                                                                           const ReplayTensor& ids) {
    const auto x = replay::embedding(pass, ids, 0, width);
    return replay::dropout(pass, x, probability);
  };
}

void describe_block(LayerTable& table, const ModelConfig& config, int64_t index) {
  const int64_t C = config.width, head_width = C / config.heads, F = hidden_width(config);
  const int64_t K = (config.kv_heads > 0 ? config.kv_heads : config.heads) * head_width;
  auto& layer = table.add_layer(fmt::format("layers.{}", index));
  const auto prefix = "model." + layer.name + ".";
  const auto plain = Initial::normal(0.02);
  // Smaller where the residual stream of many blocks adds up.
  const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
  const auto project = [&](const char* part, int64_t inputs, int64_t outputs, Initial initial) {
    return describe_projection(table, prefix + part, inputs, outputs, /*in_out=*/false, /*bias=*/false, initial,
                               config);
  };
  const auto norm = [&](const char* part) {
    table.add(prefix + part + ".weight", {C}, Initial::ones());
    return last_place(table);
  };
  BlockSpec block{.width = static_cast<double>(C),
                  .dropout = config.dropout,
                  .attention = replay::AttentionShape::of(config)};
  block.norm1 = norm("input_layernorm");
  block.q = project("self_attn.q_proj", C, C, plain);
  block.k = project("self_attn.k_proj", C, K, plain);
  block.v = project("self_attn.v_proj", C, K, plain);
  block.out = project("self_attn.o_proj", C, C, residual);
  block.norm2 = norm("post_attention_layernorm");
  block.gate = project("mlp.gate_proj", C, F, plain);
  block.up = project("mlp.up_proj", C, F, plain);
  block.down = project("mlp.down_proj", F, C, residual);
  layer.replay = [block](Replay& pass, const ReplayTensor& x) { return replay_block(pass, x, block); };

  const auto T = static_cast<double>(config.context), width = static_cast<double>(C), keys = static_cast<double>(K),
             hidden = static_cast<double>(F);
  // Seven products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
  layer.forward_flops = 2 * product_flops(T, width, width) + 2 * product_flops(T, width, keys) +
                        3 * product_flops(T, width, hidden) + 2 * product_flops(T, width, T);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 3 * product_depth(width) + product_depth(hidden) +
                product_depth(width / static_cast<double>(config.heads)) + product_depth(T) + 2 * std::log2(width);
  layer.output = config.context * C;
}

void describe_head(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  const int64_t C = config.width;
  auto& layer = table.add_layer("head");
  table.add("model.norm.weight", {C}, Initial::ones());
  if (config.tied) {
    table.share("model.embed_tokens.weight");
  } else {
    table.add("lm_head.weight", {vocab, C}, Initial::normal(0.02));
  }
  count_token_head(layer, config, vocab);
  const ProjectionSpec tokens{.inputs = C, .outputs = vocab, .weight = last_place(table)};
  layer.replay = [tokens](Replay& pass, const ReplayTensor& x) {
    return replay::linear(pass, replay::rms_norm(pass, x, static_cast<double>(tokens.inputs), 0), tokens);
  };
}

}  // namespace

void describe_llama(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  describe_embedding(table, config, vocab);
  for (int64_t i = 0; i < config.layers; ++i) describe_block(table, config, i);
  describe_head(table, config, vocab);
}

}  // namespace trireme
