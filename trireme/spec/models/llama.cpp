// Llama: token embeddings, pre-norm blocks of grouped-query attention with rotary positions and of SwiGLU, a final
// norm and a head, tied to the embedding or not. Names and layouts are those of Hugging Face's files, so that no
// conversion is ever needed.
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/models/models.h"

namespace trireme {

namespace {

void describe_embedding(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  auto& layer = table.add_layer("embedding");
  table.add("model.embed_tokens.weight", {vocab, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  layer.output = config.context * config.width;
  layer.backward_flops = static_cast<double>(layer.output);
  layer.depth = 1;
  layer.activations = config.context;
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
    describe_projection(table, prefix + part, inputs, outputs, /*in_out=*/false, /*bias=*/false, initial, config);
  };
  table.add(prefix + "input_layernorm.weight", {C}, Initial::ones());
  project("self_attn.q_proj", C, C, plain);
  project("self_attn.k_proj", C, K, plain);
  project("self_attn.v_proj", C, K, plain);
  project("self_attn.o_proj", C, C, residual);
  table.add(prefix + "post_attention_layernorm.weight", {C}, Initial::ones());
  project("mlp.gate_proj", C, F, plain);
  project("mlp.up_proj", C, F, plain);
  project("mlp.down_proj", F, C, residual);

  const auto T = static_cast<double>(config.context), width = static_cast<double>(C), keys = static_cast<double>(K),
             hidden = static_cast<double>(F);
  // Seven products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
  layer.forward_flops = 2 * product_flops(T, width, width) + 2 * product_flops(T, width, keys) +
                        3 * product_flops(T, width, hidden) + 2 * product_flops(T, width, T);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 3 * product_depth(width) + product_depth(hidden) +
                product_depth(width / static_cast<double>(config.heads)) + product_depth(T) + 2 * std::log2(width);
  // Kept: inputs of two norms and of all products, q k v, and the two parts of SwiGLU.
  layer.activations = config.context * (6 * C + 2 * K + 3 * F);
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
}

}  // namespace

void describe_llama(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  describe_embedding(table, config, vocab);
  for (int64_t i = 0; i < config.layers; ++i) describe_block(table, config, i);
  describe_head(table, config, vocab);
}

}  // namespace trireme
