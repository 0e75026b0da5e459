// Llama as a model: names, layouts, work, the cache, packed documents, frozen parameters and adapters (also of GPT).
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/model.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

ModelConfig small_llama() {
  return {.kind = ModelKind::llama, .layers = 2, .width = 16, .heads = 4, .context = 12, .kv_heads = 2, .hidden = 24};
}
ModelConfig small_gpt() { return {.kind = ModelKind::gpt, .layers = 2, .width = 16, .heads = 4, .context = 12}; }

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const auto& parameter : model.parameters()) shapes.emplace_back(parameter->name, parameter->value.sizes().vec());
  return shapes;
}

std::unique_ptr<Model> lively(const ModelConfig& config) {
  c10::NoGradGuard no_grad;
  auto model = build_model(config, 50);
  model->initialize(5);
  for (const auto& parameter : model->parameters()) parameter->value.mul_(8);  // else attention is all but uniform
  return model;
}

at::Tensor some_ids(int64_t rows) { return numbers({rows, 12}, 1).mul(50).abs().to(at::kLong); }

TEST(Llama, NamesAndShapesAreThoseOfHuggingFacesFiles) {
  auto config = small_llama();
  config.layers = 1;
  Shapes expected{{"model.embed_tokens.weight", {50, 16}},
                  {"model.layers.0.input_layernorm.weight", {16}},
                  {"model.layers.0.self_attn.q_proj.weight", {16, 16}},
                  {"model.layers.0.self_attn.k_proj.weight", {8, 16}},
                  {"model.layers.0.self_attn.v_proj.weight", {8, 16}},
                  {"model.layers.0.self_attn.o_proj.weight", {16, 16}},
                  {"model.layers.0.post_attention_layernorm.weight", {16}},
                  {"model.layers.0.mlp.gate_proj.weight", {24, 16}},
                  {"model.layers.0.mlp.up_proj.weight", {24, 16}},
                  {"model.layers.0.mlp.down_proj.weight", {16, 24}},
                  {"model.norm.weight", {16}},
                  {"lm_head.weight", {50, 16}}};
  EXPECT_EQ(shapes_of(*build_model(config, 50)), expected);
  config.tied = true;
  expected.pop_back();
  EXPECT_EQ(shapes_of(*build_model(config, 50)), expected);
}

TEST(Llama, TheUsualWidthInsideABlock) {
  EXPECT_EQ(hidden_width({.width = 4096}), 10944);  // 8/3 of it, to a multiple of 32
  EXPECT_EQ(hidden_width({.width = 384}), 1024);
  EXPECT_EQ(hidden_width({.width = 1}), 32);
  EXPECT_EQ(hidden_width({.width = 384, .hidden = 7}), 7);
}

TEST(Llama, CountsTheParametersOfKnownModels) {
  // Llama 2 7B and TinyLlama 1.1B. Memory that nobody writes to is never there.
  const auto llama2 = build_model(
      {.kind = ModelKind::llama, .layers = 32, .width = 4096, .heads = 32, .context = 64, .hidden = 11008}, 32000);
  EXPECT_EQ(llama2->table(2).parameters(), 6'738'415'616);
  const auto tiny = build_model({.kind = ModelKind::llama,
                                 .layers = 22,
                                 .width = 2048,
                                 .heads = 32,
                                 .context = 64,
                                 .kv_heads = 4,
                                 .hidden = 5632},
                                32000);
  EXPECT_EQ(tiny->table(2).parameters(), 1'100'048'384);
}

TEST(Llama, CountsTheWorkOfABlock) {
  auto config = small_llama();
  config.tied = true;
  const auto table = build_model(config, 50)->table(4);
  const double T = 12, C = 16, K = 8, F = 24;
  EXPECT_DOUBLE_EQ(table.layers[1].forward_flops, 2 * T * (2 * C * C + 2 * C * K + 3 * C * F) + 4 * T * T * C);
  EXPECT_EQ(table.layers[1].parameters, 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16);
  EXPECT_EQ(table.layers.back().tied, 50 * 16);
  EXPECT_EQ(table.layers.back().parameters, 16);
}

TEST(Llama, GeneratesWithACacheWhatTheWholeForwardGives) {
  c10::NoGradGuard no_grad;
  const auto model = lively(small_llama());
  const auto ids = some_ids(1), whole = model->forward(ids, {});
  for (const auto& pieces : {std::vector<int64_t>(12, 1), {5, 1, 1, 1, 1, 1, 1, 1}, {12}, {3, 4, 5}}) {
    KeyValueCache cache;
    Pass pass;
    pass.cache = &cache;
    for (const int64_t count : pieces) {
      const auto logits = model->forward(ids.narrow(1, cache.length, count), pass);
      expect_close(logits, whole.narrow(1, cache.length, count), 1e-12);
      cache.length += count;
    }
    EXPECT_EQ(cache.layers[0].first.size(1), 2);                     // as many as there are heads of keys
    EXPECT_THROW(model->forward(ids.narrow(1, 0, 1), pass), Error);  // beyond the context
  }
}

TEST(Llama, WritesAttentionOutAsTorchHasIt) {
  c10::NoGradGuard no_grad;
  auto config = small_llama();
  config.dropout = 1e-12;
  const auto dropping = lively(config), plain = lively(small_llama());
  Pass pass{.training = true, .samples = at::arange(3, at::kLong)};
  expect_close(dropping->forward(some_ids(3), pass), plain->forward(some_ids(3), pass), 1e-10);
}

// A packed sample gives for each document what the document gives by itself.
TEST(Documents, AreReadAsIfEachWereAlone) {
  c10::NoGradGuard no_grad;
  for (auto config : {small_llama(), small_gpt()}) {
    for (const double dropout : {0.0, 1e-12}) {
      config.dropout = dropout;
      const auto model = lively(config);
      const auto ids = some_ids(2);
      const std::vector<std::vector<int64_t>> starts{{0, 0, 0, 3, 3, 3, 3, 7, 8, 8, 8, 8},
                                                     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11}};
      const auto starts_BT = at::tensor(starts[0], at::kLong);
      Pass packed{.training = dropout > 0, .samples = at::arange(2, at::kLong)};
      packed.documents = documents_from(at::stack({starts_BT, at::tensor(starts[1], at::kLong)}));
      const auto found = model->forward(ids, packed);
      for (int64_t row = 0; row < 2; ++row) {
        const auto& of_row = starts[static_cast<size_t>(row)];
        for (int64_t begin = 0, end; begin < 12; begin = end) {
          for (end = begin; end < 12 && of_row[static_cast<size_t>(end)] == begin;) ++end;
          const auto alone = model->forward(ids.narrow(0, row, 1).narrow(1, begin, end - begin), {});
          expect_close(found.narrow(0, row, 1).narrow(1, begin, end - begin), alone, 1e-10);
        }
      }
    }
  }
}

TEST(Freeze, NamesWhatIsNotTrained) {
  auto config = small_gpt();
  config.freeze = "wte.weight, h.0.*";
  const auto model = build_model(config, 50);
  int64_t frozen = 0;
  for (const auto& parameter : model->parameters()) {
    const bool expected = parameter->name == "wte.weight" || parameter->name.rfind("h.0.", 0) == 0;
    EXPECT_EQ(!parameter->trained, expected) << parameter->name;
    EXPECT_EQ(parameter->value.requires_grad(), !expected) << parameter->name;
    if (expected) frozen += parameter->value.numel();
  }
  const auto table = model->table(4);
  EXPECT_EQ(table.layers[0].frozen, 50 * 16);
  EXPECT_EQ(table.layers[1].frozen, table.layers[1].parameters);
  EXPECT_EQ(table.layers[2].frozen, 0);
  EXPECT_EQ(table.layers[0].frozen + table.layers[1].frozen, frozen);
}

std::string refusal(const ModelConfig& config) {
  try {
    build_model(config, 50);
  } catch (const Error& error) {
    return error.what();
  }
  return "(built)";
}

TEST(Freeze, RefusesNamesOfNothingAndOfEverything) {
  auto config = small_gpt();
  config.freeze = "h.7.*";
  EXPECT_THAT(refusal(config), HasSubstr("no parameter has the name h.7.*"));
  config.freeze = "*";
  EXPECT_THAT(refusal(config), HasSubstr("leaves nothing to train"));
  config.freeze = "";
  config.lora_rank = 2;
  config.lora_targets = "*.nothing";
  EXPECT_THAT(refusal(config), HasSubstr("model.lora_targets = *.nothing"));
}

TEST(Lora, AddsAdaptersThatAloneAreTrained) {
  auto config = small_gpt();
  config.lora_rank = 3;
  const auto model = build_model(config, 50);
  Shapes adapters;
  for (const auto& parameter : model->parameters()) {
    const bool adapter = parameter->name.find("lora") != std::string::npos;
    EXPECT_EQ(parameter->trained, adapter) << parameter->name;
    if (adapter) adapters.emplace_back(parameter->name, parameter->value.sizes().vec());
  }
  EXPECT_EQ(adapters, (Shapes{{"h.0.attn.c_attn.lora_A.weight", {3, 16}},
                              {"h.0.attn.c_attn.lora_B.weight", {48, 3}},
                              {"h.0.attn.c_proj.lora_A.weight", {3, 16}},
                              {"h.0.attn.c_proj.lora_B.weight", {16, 3}},
                              {"h.1.attn.c_attn.lora_A.weight", {3, 16}},
                              {"h.1.attn.c_attn.lora_B.weight", {48, 3}},
                              {"h.1.attn.c_proj.lora_A.weight", {3, 16}},
                              {"h.1.attn.c_proj.lora_B.weight", {16, 3}}}));
}

// Before training an adapter changes nothing; with values it is the sum W + (alpha / rank) B A, in either layout.
TEST(Lora, IsASumOfWeights) {
  c10::NoGradGuard no_grad;
  for (auto config : {small_gpt(), small_llama()}) {
    const auto plain = lively(config);
    config.lora_rank = 3;
    config.lora_alpha = 7;
    config.lora_targets = "*";
    const auto adapted = lively(config);
    const auto ids = some_ids(2);
    expect_close(adapted->forward(ids, {}), plain->forward(ids, {}), 1e-12);
    std::map<std::string, at::Tensor> values;
    for (const auto& parameter : adapted->parameters()) {
      if (parameter->name.find("lora_B") != std::string::npos)
        parameter->value.copy_(0.3 * numbers(parameter->value.sizes(), 4));
      values[parameter->name] = parameter->value;
    }
    for (const auto& parameter : plain->parameters()) {
      const auto stem = parameter->name.substr(0, parameter->name.rfind(".weight"));
      if (!values.contains(stem + ".lora_A.weight")) continue;
      const auto delta = 7.0 / 3 * values[stem + ".lora_B.weight"].mm(values[stem + ".lora_A.weight"]);
      parameter->value.add_(config.kind == ModelKind::gpt ? delta.t() : delta);
    }
    expect_close(adapted->forward(ids, {}), plain->forward(ids, {}), 1e-12);
  }
}

}  // namespace
}  // namespace trireme
