// Models by name, as tables: which layers and parameters each is made of, and what they cost. The room nn makes layers
// that compute from the same descriptions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/spec/config.h"
#include "trireme/spec/layer.h"

namespace trireme {

// `vocab` is what the data needs when the configuration leaves it open. Refuses a model.freeze and model.lora_targets
// that name nothing.
LayerTable model_table(const ModelConfig& config, int64_t vocab, int64_t element_bytes = 4);

// The parts of model_table: each adds its layers.
void describe_gpt(LayerTable& table, const ModelConfig& config, int64_t vocab);
void describe_llama(LayerTable& table, const ModelConfig& config, int64_t vocab);
void describe_mlp(LayerTable& table, const ModelConfig& config);

// A matrix of a layer, with what lies beside it. Parameters are places among those that the layer uses.
struct ProjectionSpec {
  int64_t inputs = 0, outputs = 0;
  int64_t rank = 0;  // of the adapter
  bool in_out = false;
  double lora_scale = 0;
  size_t weight = 0;
  std::optional<size_t> bias, lora_a, lora_b;
};

// Of the last layer of a table: a matrix NAME.weight, [inputs, outputs] as `in_out` says or the other way round, with
// NAME.bias where wanted, and an adapter (LoRA) where the configuration asks for one.
ProjectionSpec describe_projection(LayerTable& table, const std::string& name, int64_t inputs, int64_t outputs,
                                   bool in_out, bool bias, Initial initial, const ModelConfig& config);

// Work and depth of a final norm and a product with a table of tokens.
void count_token_head(LayerSpec& layer, const ModelConfig& config, int64_t vocab);

// The place of the parameter that was added last, among those of the table's last layer.
size_t last_place(const LayerTable& table);

// As torch's Linear starts.
Initial linear_start(int64_t inputs);

}  // namespace trireme
