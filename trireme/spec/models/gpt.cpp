// GPT-2: token and position embeddings, pre-norm transformer blocks, a final norm and a head tied to the token
// embedding. Names and layouts are those of GPT-2's published files, so that no conversion is ever needed.
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/models/models.h"
#include "trireme/spec/replay_functions.h"

namespace trireme {

namespace {

// The layers as nn/gpt.cpp computes them: T tokens, C width.

LayerReplay replay_embedding(const ModelConfig& config, size_t tokens, size_t positions) {
  const auto T = static_cast<double>(config.context), C = static_cast<double>(config.width);
  return [T, C, tokens, positions, probability = config.dropout](Replay& pass, const ReplayTensor& ids) {
    const auto places = pass.make(T, Element::index);
    const auto x = replay::add(pass, replay::embedding(pass, ids, tokens, C),
                               replay::embedding(pass, places, positions, C));
    return replay::dropout(pass, x, probability);
  };
}

struct BlockSpec {
  double width = 0, dropout = 0;
  replay::AttentionShape attention;
  size_t norm1 = 0, norm2 = 0;  // a gain, and the bias behind it
  ProjectionSpec qkv, out, up, down;
};

ReplayTensor replay_attention(Replay& pass, const ReplayTensor& x, const BlockSpec& block) {
  const auto qkv = replay::split(pass, replay::project(pass, x, block.qkv), 3);
  return replay::attention(pass, qkv[0], qkv[1], qkv[2], block.attention);
}

ReplayTensor replay_block(Replay& pass, const ReplayTensor& x, const BlockSpec& block) {
  const auto norm = [&](const ReplayTensor& t, size_t gain) {
    return replay::layer_norm(pass, t, block.width, gain, gain + 1);
  };
  const auto y = replay::project(pass, replay_attention(pass, norm(x, block.norm1), block), block.out);
  const auto middle = replay::add(pass, x, replay::dropout(pass, y, block.dropout));
  auto z = replay::project(pass, norm(middle, block.norm2), block.up);
  z = replay::project(pass, replay::gelu_tanh(pass, z), block.down);
  return replay::add(pass, middle, replay::dropout(pass, z, block.dropout));
}

void describe_embedding(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  auto& layer = table.add_layer("embedding");
  table.add("wte.weight", {vocab, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  table.add("wpe.weight", {config.context, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  layer.output = config.context * config.width;
  layer.forward_flops = static_cast<double>(layer.output);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 1;
  layer.takes_ids = true;
  layer.replay = replay_embedding(config, 0, 1);
}

void describe_block(LayerTable& table, const ModelConfig& config, int64_t index) {
  const int64_t C = config.width;
  const auto name = fmt::format("h.{}", index);
  auto& layer = table.add_layer(name);
  const auto plain = Initial::normal(0.02);
  // Smaller where the residual stream of many blocks adds up.
  const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
  const auto project = [&](const char* part, int64_t inputs, int64_t outputs, Initial initial) {
    return describe_projection(table, name + "." + part, inputs, outputs, /*in_out=*/true, /*bias=*/true, initial,
                               config);
  };
  const auto norm = [&](const char* part) {
    table.add(name + "." + part + ".weight", {C}, Initial::ones());
    table.add(name + "." + part + ".bias", {C}, Initial::zeros());
    return last_place(table) - 1;
  };
  BlockSpec block{.width = static_cast<double>(C),
                  .dropout = config.dropout,
                  .attention = replay::AttentionShape::of(config)};
  block.norm1 = norm("ln_1");
  block.qkv = project("attn.c_attn", C, 3 * C, plain);
  block.out = project("attn.c_proj", C, C, residual);
  block.norm2 = norm("ln_2");
  block.up = project("mlp.c_fc", C, 4 * C, plain);
  block.down = project("mlp.c_proj", 4 * C, C, residual);
  layer.replay = [block](Replay& pass, const ReplayTensor& x) { return replay_block(pass, x, block); };

  const auto T = static_cast<double>(config.context), width = static_cast<double>(C),
             H = static_cast<double>(config.heads);
  // Four products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
  layer.forward_flops = product_flops(T, width, 3 * width) + product_flops(T, width, width) +
                        2 * product_flops(T, width, 4 * width) + 2 * product_flops(T, width, T);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 2 * product_depth(width) + product_depth(4 * width) + product_depth(width / H) + product_depth(T) +
                4 * std::log2(width);
  layer.output = config.context * C;
}

void describe_head(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  const int64_t C = config.width;
  auto& layer = table.add_layer("head");
  table.add("ln_f.weight", {C}, Initial::ones());
  table.add("ln_f.bias", {C}, Initial::zeros());
  if (config.untied) {
    table.add("lm_head.weight", {vocab, C}, Initial::normal(0.02));
  } else {
    table.share("wte.weight");
  }
  count_token_head(layer, config, vocab);
  const ProjectionSpec tokens{.inputs = C, .outputs = vocab, .weight = last_place(table)};
  layer.replay = [tokens](Replay& pass, const ReplayTensor& x) {
    return replay::linear(pass, replay::layer_norm(pass, x, static_cast<double>(tokens.inputs), 0, 1), tokens);
  };
}

}  // namespace

void describe_gpt(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  describe_embedding(table, config, vocab);
  for (int64_t i = 0; i < config.layers; ++i) describe_block(table, config, i);
  describe_head(table, config, vocab);
}

}  // namespace trireme
