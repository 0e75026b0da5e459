// GPT-2: token and position embeddings, pre-norm transformer blocks, a final norm and a head tied to the token
// embedding. Names and layouts are those of GPT-2's published files, so that no conversion is ever needed.
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/models/models.h"

namespace trireme {

namespace {

void describe_embedding(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  auto& layer = table.add_layer("embedding");
  table.add("wte.weight", {vocab, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  table.add("wpe.weight", {config.context, config.width}, Initial::normal(0.02)).kind = ParameterKind::table;
  layer.output = config.context * config.width;
  layer.forward_flops = static_cast<double>(layer.output);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 1;
  layer.activations = config.context;
}

void describe_block(LayerTable& table, const ModelConfig& config, int64_t index) {
  const int64_t C = config.width;
  const auto name = fmt::format("h.{}", index);
  auto& layer = table.add_layer(name);
  const auto plain = Initial::normal(0.02);
  // Smaller where the residual stream of many blocks adds up.
  const auto residual = Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
  const auto project = [&](const char* part, int64_t inputs, int64_t outputs, Initial initial) {
    describe_projection(table, name + "." + part, inputs, outputs, /*in_out=*/true, /*bias=*/true, initial, config);
  };
  const auto norm = [&](const char* part) {
    table.add(name + "." + part + ".weight", {C}, Initial::ones());
    table.add(name + "." + part + ".bias", {C}, Initial::zeros());
  };
  norm("ln_1");
  project("attn.c_attn", C, 3 * C, plain);
  project("attn.c_proj", C, C, residual);
  norm("ln_2");
  project("mlp.c_fc", C, 4 * C, plain);
  project("mlp.c_proj", 4 * C, C, residual);

  const auto T = static_cast<double>(config.context), width = static_cast<double>(C),
             H = static_cast<double>(config.heads);
  // Four products with the weights, two in attention (counted whole, as is usual, though half of it is masked).
  layer.forward_flops = product_flops(T, width, 3 * width) + product_flops(T, width, width) +
                        2 * product_flops(T, width, 4 * width) + 2 * product_flops(T, width, T);
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = 2 * product_depth(width) + product_depth(4 * width) + product_depth(width / H) + product_depth(T) +
                4 * std::log2(width);
  // Kept: inputs of two norms, of four products, q k v (in the first product's output), gelu's input.
  layer.activations = config.context * C * (2 + 1 + 3 + 1 + 1 + 4 + 4);
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
}

}  // namespace

void describe_gpt(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  describe_embedding(table, config, vocab);
  for (int64_t i = 0; i < config.layers; ++i) describe_block(table, config, i);
  describe_head(table, config, vocab);
}

}  // namespace trireme
