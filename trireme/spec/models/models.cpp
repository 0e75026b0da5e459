#include "trireme/spec/models/models.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/pattern.h"
#include "trireme/base/units.h"
#include "trireme/spec/models/image_models.h"

namespace trireme {

namespace {

void describe_layers(LayerTable& table, const ModelConfig& config, int64_t vocab) {
  switch (config.kind) {
    case ModelKind::gpt: return describe_gpt(table, config, vocab);
    case ModelKind::llama: return describe_llama(table, config, vocab);
    case ModelKind::mlp: return describe_mlp(table, config);
    case ModelKind::resnet18:
    case ModelKind::resnet34:
    case ModelKind::resnet50: return (void)describe_resnet(table, config);
    case ModelKind::vgg11:
    case ModelKind::vgg16:
    case ModelKind::alexnet:
    case ModelKind::cnn: return (void)describe_chain(table, config);
    case ModelKind::googlenet: return (void)describe_googlenet(table, config);
    case ModelKind::custom:
      refuse("model.kind = custom is the model of a program that uses the library: train it with that program");
  }
  fail("no such model");
}

// Decides which parameters are trained: all but those that model.freeze names, or the adapters alone.
void freeze(LayerTable& table, const ModelConfig& config) {
  const auto patterns = split_patterns(config.freeze);
  for (const auto& pattern : patterns) {
    const bool named = std::any_of(table.weights.begin(), table.weights.end(),
                                   [&](const auto& parameter) { return matches(pattern, parameter.name); });
    if (!named) refuse("model.freeze: no parameter has the name {}", pattern);
  }
  bool any = false;
  for (auto& parameter : table.weights) {
    parameter.trained = config.lora_rank > 0 ? parameter.adapter : !matches_any(patterns, parameter.name);
    any = any || parameter.trained;
  }
  if (any) return;
  if (config.lora_rank > 0) {
    const auto& block = table.layers[1].uses;
    const auto matrix = std::find_if(block.begin(), block.end(), [&](size_t one) { return table.weights[one].decays(); });
    const auto& name = table.weights[*matrix].name;
    refuse("model.lora_targets = {} names no matrix of this model: they are called {} and the like",
           config.lora_targets, name.substr(0, name.rfind(".weight")));
  }
  refuse("model.freeze = {} leaves nothing to train", config.freeze);
}

// Beyond any machine, and soon beyond what sums of elements can count.
void check_size(const LayerTable& table) {
  constexpr double most = 1e15;
  double parameters = 0, kept = 0;
  for (const auto& parameter : table.weights) {
    parameters += std::accumulate(parameter.shape.begin(), parameter.shape.end(), 1.0, std::multiplies<>());
  }
  for (size_t i = 0; i < table.layers.size(); ++i)
    kept += static_cast<double>(table.kept_bytes(i)) / static_cast<double>(table.element_bytes);
  if (parameters <= most && kept <= most) return;
  refuse("the model has {} parameters and keeps {} numbers of each sample, and more than {} are too many: make it smaller",
         human_count(parameters), human_count(kept), human_count(most));
}

}  // namespace

LayerTable model_table(const ModelConfig& config, int64_t vocab, int64_t element_bytes) {
  LayerTable table;
  table.input = reads_tokens(config.kind)     ? config.context
                : takes_images(config.kind) ? config.channels * config.image * config.image
                                            : config.inputs;
  table.element_bytes = element_bytes;
  describe_layers(table, config, config.vocab > 0 ? config.vocab : vocab);
  check_size(table);
  if (config.skip) table.skips.push_back({0, table.layers.size() - 1});
  freeze(table, config);
  table.count();
  return table;
}

ProjectionSpec describe_projection(LayerTable& table, const std::string& name, int64_t inputs, int64_t outputs,
                                   bool in_out, bool bias, Initial initial, const ModelConfig& config) {
  ProjectionSpec projection{.inputs = inputs, .outputs = outputs, .rank = config.lora_rank, .in_out = in_out};
  table.add(name + ".weight", in_out ? std::vector{inputs, outputs} : std::vector{outputs, inputs}, initial);
  projection.weight = last_place(table);
  if (bias) {
    table.add(name + ".bias", {outputs}, Initial::zeros());
    projection.bias = last_place(table);
  }
  if (config.lora_rank == 0 || !matches_any(split_patterns(config.lora_targets), name)) return projection;
  const auto [a, b] = adapter_names(name);
  table.add(a, {config.lora_rank, inputs}, linear_start(inputs)).adapter = true;
  projection.lora_a = last_place(table);
  table.add(b, {outputs, config.lora_rank}, Initial::zeros()).adapter = true;
  projection.lora_b = last_place(table);
  projection.lora_scale = config.lora_alpha / static_cast<double>(config.lora_rank);
  return projection;
}

size_t last_place(const LayerTable& table) { return table.layers.back().uses.size() - 1; }

void count_token_head(LayerSpec& layer, const ModelConfig& config, int64_t vocab) {
  const auto T = static_cast<double>(config.context), C = static_cast<double>(config.width);
  layer.forward_flops = product_flops(T, C, static_cast<double>(vocab));
  layer.backward_flops = 2 * layer.forward_flops;
  layer.depth = product_depth(C) + std::log2(C);
  layer.output = config.context * vocab;
}

Initial linear_start(int64_t inputs) { return Initial::uniform(1 / std::sqrt(static_cast<double>(inputs))); }

}  // namespace trireme
