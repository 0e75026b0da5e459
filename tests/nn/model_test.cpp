#include "trireme/nn/model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/close.h"
#include "trireme/base/error.h"
#include "trireme/spec/models/models.h"

namespace trireme {
namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

ModelConfig small_gpt() { return {.kind = ModelKind::gpt, .layers = 2, .width = 16, .heads = 4, .context = 12}; }
ModelConfig small_mlp() { return {.kind = ModelKind::mlp, .layers = 2, .width = 8, .inputs = 5, .classes = 3}; }

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const auto& parameter : model.parameters()) shapes.emplace_back(parameter->name, parameter->value.sizes().vec());
  return shapes;
}

std::map<std::string, ParameterPtr> by_name(const Model& model) {
  std::map<std::string, ParameterPtr> found;
  for (const auto& parameter : model.parameters()) found[parameter->name] = parameter;
  return found;
}

int64_t elements_of(const Model& model) {
  int64_t elements = 0;
  for (const auto& parameter : model.parameters()) elements += parameter->value.numel();
  return elements;
}

TEST(Gpt, NamesAndShapesAreThoseOfGpt2sFiles) {
  auto config = small_gpt();
  config.layers = 1;
  const auto model = build_model(config, 50);
  const Shapes expected{{"wte.weight", {50, 16}},
                        {"wpe.weight", {12, 16}},
                        {"h.0.ln_1.weight", {16}},
                        {"h.0.ln_1.bias", {16}},
                        {"h.0.attn.c_attn.weight", {16, 48}},
                        {"h.0.attn.c_attn.bias", {48}},
                        {"h.0.attn.c_proj.weight", {16, 16}},
                        {"h.0.attn.c_proj.bias", {16}},
                        {"h.0.ln_2.weight", {16}},
                        {"h.0.ln_2.bias", {16}},
                        {"h.0.mlp.c_fc.weight", {16, 64}},
                        {"h.0.mlp.c_fc.bias", {64}},
                        {"h.0.mlp.c_proj.weight", {64, 16}},
                        {"h.0.mlp.c_proj.bias", {16}},
                        {"ln_f.weight", {16}},
                        {"ln_f.bias", {16}}};
  EXPECT_EQ(shapes_of(*model), expected);
  for (const auto& parameter : model->parameters()) {
    EXPECT_EQ(parameter->decays(), parameter->value.dim() == 2) << parameter->name;
    EXPECT_EQ(parameter->uses, parameter->name == "wte.weight" ? 2 : 1) << parameter->name;  // the head is tied to it
    EXPECT_TRUE(parameter->value.requires_grad()) << parameter->name;
  }
}

TEST(Mlp, NamesAndShapesAreThoseOfTorchsLinear) {
  const Shapes expected{{"layers.0.weight", {8, 5}}, {"layers.0.bias", {8}},  {"layers.1.weight", {8, 8}},
                        {"layers.1.bias", {8}},      {"head.weight", {3, 8}}, {"head.bias", {3}}};
  EXPECT_EQ(shapes_of(*build_model(small_mlp(), 0)), expected);
}

TEST(LayerTable, CountsTheParametersOfKnownModels) {
  // Memory that nobody writes to is never there: the large models cost nothing to build.
  const auto gpt2 =
      build_model({.kind = ModelKind::gpt, .layers = 12, .width = 768, .heads = 12, .context = 1024}, 50257);
  EXPECT_EQ(gpt2->table(4).parameters(), 124'439'808);
  EXPECT_EQ(elements_of(*gpt2), 124'439'808);
  const auto mlp = build_model({.kind = ModelKind::mlp, .layers = 8, .width = 1024, .inputs = 1024, .classes = 10}, 0);
  EXPECT_EQ(mlp->table(4).parameters(), 8'407'050);
  EXPECT_EQ(elements_of(*mlp), 8'407'050);
}

TEST(LayerTable, CountsTheWorkOfABlock) {
  const int64_t layers = 3, width = 96, context = 64, vocab = 500;
  const auto model =
      build_model({.kind = ModelKind::gpt, .layers = layers, .width = width, .heads = 6, .context = context}, vocab);
  const auto table = model->table(2);
  ASSERT_EQ(table.layers.size(), static_cast<size_t>(layers + 2));
  EXPECT_EQ(table.element_bytes, 2);
  const double T = context, C = width, V = vocab;
  for (size_t i = 1; i <= layers; ++i) {
    const auto& block = table.layers[i];
    EXPECT_EQ(block.name, fmt::format("h.{}", i - 1));
    EXPECT_DOUBLE_EQ(block.forward_flops, 24 * T * C * C + 4 * T * T * C);
    EXPECT_DOUBLE_EQ(block.backward_flops, 2 * block.forward_flops);
    EXPECT_EQ(block.parameters, 12 * width * width + 13 * width);
    EXPECT_EQ(block.output, context * width);
    EXPECT_GT(block.forward_flops / block.depth, 1000);  // average parallelism
  }
  EXPECT_DOUBLE_EQ(table.layers.back().forward_flops, 2 * T * C * V);
  EXPECT_EQ(table.layers.back().parameters, 2 * width);  // the tied table counts where it is first used
  EXPECT_EQ(table.layers.back().output, context * vocab);
  EXPECT_EQ(table.parameters(), elements_of(*model));
}

TEST(LayerTable, CountsTheWorkOfAnMlp) {
  const auto model = build_model(small_mlp(), 0);
  const auto table = model->table(4);
  EXPECT_DOUBLE_EQ(table.layers[0].forward_flops, 2 * 5 * 8);
  EXPECT_DOUBLE_EQ(table.layers[2].forward_flops, 2 * 8 * 3);
  EXPECT_DOUBLE_EQ(table.flops(), 3 * (2 * 5 * 8 + 2 * 8 * 8 + 2 * 8 * 3));
  EXPECT_EQ(table.parameters(), elements_of(*model));
}

TEST(Initialize, IsAPureFunctionOfSeedAndName) {
  const auto before = at::get_num_threads();
  const auto one = build_model(small_gpt(), 2000), same = build_model(small_gpt(), 2000),
             other = build_model(small_gpt(), 2000);
  auto deeper_config = small_gpt();
  deeper_config.layers = 5;
  const auto deeper = build_model(deeper_config, 2000);
  one->initialize(7);
  at::set_num_threads(1);  // wte is large enough to be drawn in several pieces
  same->initialize(7);
  at::set_num_threads(before);
  other->initialize(8);
  deeper->initialize(7);
  const auto first = by_name(*one), second = by_name(*same), third = by_name(*other), fourth = by_name(*deeper);
  for (const auto& [name, parameter] : first) {
    EXPECT_TRUE(at::equal(parameter->value, second.at(name)->value)) << name;
    const bool random = parameter->value.dim() == 2;
    EXPECT_EQ(at::equal(parameter->value, third.at(name)->value), !random) << name;
    // What a layer starts from does not depend on the others, but for the scale of the residual projections.
    const double scale = name.ends_with("c_proj.weight") ? std::sqrt(2.0 / 5.0) : 1;
    expect_close(fourth.at(name)->value, parameter->value * scale, 1e-15);
  }
  EXPECT_FALSE(at::equal(first.at("h.0.mlp.c_fc.weight")->value, first.at("h.1.mlp.c_fc.weight")->value));
}

TEST(Initialize, HasTheDeviationsOfGpt2) {
  const auto model = build_model({.kind = ModelKind::gpt, .layers = 8, .width = 64, .heads = 4, .context = 64}, 256);
  model->initialize(1);
  const auto parameters = by_name(*model);
  const auto deviation = [&](const char* name) { return parameters.at(name)->value.std().item<double>(); };
  EXPECT_NEAR(deviation("wte.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("h.0.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("h.7.mlp.c_proj.weight"), 0.02 / 4, 0.0003);
  EXPECT_NEAR(parameters.at("wte.weight")->value.mean().item<double>(), 0, 0.001);
  EXPECT_TRUE(at::equal(parameters.at("ln_f.weight")->value, at::ones({64}, at::kDouble)));
  EXPECT_TRUE(at::equal(parameters.at("h.3.mlp.c_fc.bias")->value, at::zeros({256}, at::kDouble)));

  const auto mlp = build_model({.kind = ModelKind::mlp, .layers = 1, .width = 64, .inputs = 100, .classes = 4}, 0);
  mlp->initialize(1);
  const auto weight = by_name(*mlp).at("layers.0.weight")->value;
  EXPECT_LE(weight.abs().max().item<double>(), 0.1);  // uniform in ±1/√inputs
  EXPECT_NEAR(weight.std().item<double>(), 0.1 / std::sqrt(3.0), 0.002);
}

TEST(Model, RoundsTheSameValuesToOtherTypes) {
  const auto wide = build_model(small_gpt(), 50), narrow = build_model(small_gpt(), 50);
  wide->initialize(3);
  narrow->to(at::kFloat, at::kCPU);
  narrow->initialize(3);
  const auto values = by_name(*wide);
  for (const auto& parameter : narrow->parameters()) {
    EXPECT_TRUE(parameter->value.requires_grad());
    EXPECT_TRUE(at::equal(parameter->value, values.at(parameter->name)->value.to(at::kFloat))) << parameter->name;
  }
}

// Every token must give the same logits whether its past was read at once or token by token.
TEST(Gpt, GeneratesWithACacheWhatTheWholeForwardGives) {
  c10::NoGradGuard no_grad;
  const auto model = build_model(small_gpt(), 50);
  model->initialize(5);
  for (const auto& parameter : model->parameters()) parameter->value.mul_(8);  // else attention is all but uniform
  const auto ids = numbers({1, 12}, 1).mul(50).abs().to(at::kLong);
  const auto whole = model->forward(ids, {});
  ASSERT_EQ(whole.sizes(), at::IntArrayRef({1, 12, 50}));
  for (const auto& pieces : {std::vector<int64_t>(12, 1), {5, 1, 1, 1, 1, 1, 1, 1}, {12}, {3, 4, 5}}) {
    KeyValueCache cache;
    Pass pass;
    pass.cache = &cache;
    for (const int64_t count : pieces) {
      const auto logits = model->forward(ids.narrow(1, cache.length, count), pass);
      expect_close(logits, whole.narrow(1, cache.length, count), 1e-12);
      cache.length += count;
    }
    EXPECT_THROW(model->forward(ids.narrow(1, 0, 1), pass), Error);  // beyond the context
  }
}

TEST(Gpt, LooksOnlyBack) {
  c10::NoGradGuard no_grad;
  const auto model = build_model(small_gpt(), 50);
  model->initialize(5);
  auto ids = at::arange(12, at::kLong).view({1, 12});
  const auto before = model->forward(ids, {});
  ids[0][7] = 40;
  const auto after = model->forward(ids, {});
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 7), after.narrow(1, 0, 7), 0, 1e-14));
  for (int64_t place = 7; place < 12; ++place) EXPECT_GT(distance(after[0][place], before[0][place]), 1e-6) << place;
}

// Attention with dropout is written out by hand; with almost nothing dropped it must be torch's fused one.
TEST(Gpt, WritesAttentionOutAsTorchHasIt) {
  c10::NoGradGuard no_grad;
  auto config = small_gpt();
  config.dropout = 1e-12;
  const auto dropping = build_model(config, 50), plain = build_model(small_gpt(), 50);
  dropping->initialize(5);
  plain->initialize(5);
  const auto ids = numbers({3, 12}, 1).mul(50).abs().to(at::kLong);
  Pass pass;
  pass.training = true;
  pass.samples = at::arange(3, at::kLong);
  expect_close(dropping->forward(ids, pass), plain->forward(ids, pass), 1e-10);
}

TEST(Gpt, DropsOnlyInTraining) {
  c10::NoGradGuard no_grad;
  auto config = small_gpt();
  config.dropout = 0.5;
  const auto model = build_model(config, 50), plain = build_model(small_gpt(), 50);
  model->initialize(5);
  plain->initialize(5);
  const auto ids = numbers({2, 12}, 1).mul(50).abs().to(at::kLong);
  Pass training{.training = true, .dropout = Key{1}, .samples = at::arange(2, at::kLong)};
  const auto dropped = model->forward(ids, training);
  EXPECT_TRUE(at::equal(model->forward(ids, {}), plain->forward(ids, {})));
  EXPECT_GT(distance(dropped, model->forward(ids, {})), 0.01);
  EXPECT_TRUE(at::equal(dropped, model->forward(ids, training)));
  training.dropout = Key{2};
  EXPECT_GT(distance(dropped, model->forward(ids, training)), 0.01);
}

TEST(CrossEntropy, SumsOverEveryTarget) {
  const auto logits = numbers({2, 3, 5}, 1);
  const auto targets = at::tensor({4, 0, 1, 1, 2, 3}, at::kLong).view({2, 3});
  const auto expected = -at::log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).sum();
  expect_close(cross_entropy_sum(logits, targets), expected, 1e-14);
  EXPECT_EQ(cross_entropy_sum(logits.to(at::kBFloat16), targets).scalar_type(), at::kFloat);
  expect_close(cross_entropy_sum(logits.to(at::kBFloat16), targets), expected, 1e-2);
}

// What plans and dry runs go by is the table that is made without a tensor; what trains says its own. They are one.
TEST(Tables, AreThoseOfTheModelsThatAreBuiltByThem) {
  std::vector<std::pair<std::string, ModelConfig>> models;
  const auto add = [&](const std::string& name, ModelConfig config, const std::function<void(ModelConfig&)>& change) {
    change(config);
    models.emplace_back(name, std::move(config));
  };
  const auto plain = [](ModelConfig&) {};
  const ModelConfig gpt = small_gpt();
  const ModelConfig llama{.kind = ModelKind::llama, .layers = 2, .width = 16, .heads = 4, .context = 12};
  for (const auto& [kind, config] : {std::pair{"gpt", gpt}, std::pair{"llama", llama}}) {
    const std::string name = kind;
    add(name, config, plain);
    add(name + ", dropout", config, [](auto& changed) { changed.dropout = 0.1; });
    add(name + ", skip", config, [](auto& changed) { changed.skip = true; });
    add(name + ", frozen", config, [](auto& changed) { changed.freeze = "*.0.*"; });
    add(name + ", adapters", config, [](auto& changed) { changed.lora_rank = 2; });
    add(name + ", adapters everywhere", config, [](auto& changed) {
      changed.lora_rank = 3;
      changed.lora_targets = "*";
    });
    add(name + ", own vocabulary", config, [](auto& changed) { changed.vocab = 77; });
  }
  add("gpt, untied", gpt, [](auto& changed) { changed.untied = true; });
  add("gpt, untied and frozen", gpt, [](auto& changed) {
    changed.untied = true;
    changed.freeze = "wte.*";
  });
  add("llama, tied", llama, [](auto& changed) { changed.tied = true; });
  add("llama, grouped", llama, [](auto& changed) {
    changed.kv_heads = 2;
    changed.hidden = 24;
    changed.lora_rank = 2;
  });
  add("mlp", small_mlp(), plain);
  add("mlp, frozen", small_mlp(), [](auto& changed) { changed.freeze = "*.bias"; });
  add("mlp, skip and dropout", small_mlp(), [](auto& changed) {
    changed.layers = 3;
    changed.skip = true;
    changed.dropout = 0.2;
  });
  for (const auto& [kind, name] : std::vector<std::pair<ModelKind, std::string>>{{ModelKind::resnet18, "resnet18"},
                                                                                 {ModelKind::resnet34, "resnet34"},
                                                                                 {ModelKind::resnet50, "resnet50"},
                                                                                 {ModelKind::vgg11, "vgg11"},
                                                                                 {ModelKind::vgg16, "vgg16"},
                                                                                 {ModelKind::alexnet, "alexnet"},
                                                                                 {ModelKind::googlenet, "googlenet"},
                                                                                 {ModelKind::cnn, "cnn"}}) {
    const ModelConfig images{.kind = kind, .classes = 7};
    add(name, images, plain);
    add(name + ", large", images, [](auto& changed) { changed.image = 224; });
    add(name + ", grey", images, [](auto& changed) { changed.channels = 1; });
    add(name + ", dropout", images, [](auto& changed) { changed.dropout = 0.5; });
    add(name + ", local", images, [](auto& changed) { changed.batch_norm = BatchNormKind::local; });
    add(name + ", frozen biases", images, [](auto& changed) { changed.freeze = "*.bias"; });
  }
  for (const auto& [name, config] : models) {
    for (const int64_t bytes : {8, 4, 2}) {
      SCOPED_TRACE(name);
      const auto foreseen = model_table(config, 50, bytes);
      const auto built = build_model(config, 50)->table(bytes);
      ASSERT_EQ(built.layers.size(), foreseen.layers.size());
      for (size_t i = 0; i < built.layers.size(); ++i)
        EXPECT_TRUE(built.layers[i] == foreseen.layers[i]) << foreseen.layers[i].name;
      ASSERT_EQ(built.weights.size(), foreseen.weights.size());
      for (size_t i = 0; i < built.weights.size(); ++i)
        EXPECT_TRUE(built.weights[i] == foreseen.weights[i]) << foreseen.weights[i].name;
      EXPECT_TRUE(built.skips == foreseen.skips);
      EXPECT_EQ(built.input, foreseen.input);
      EXPECT_EQ(built.element_bytes, foreseen.element_bytes);
    }
  }
}

}  // namespace
}  // namespace trireme
