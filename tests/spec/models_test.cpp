#include "trireme/spec/models/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {
namespace {

const ParameterSpec& named(const LayerTable& table, const std::string& name) {
  for (const auto& parameter : table.weights) {
    if (parameter.name == name) return parameter;
  }
  throw std::runtime_error("no parameter " + name);
}

// GPT-3 as its paper has it, and a model of a million million parameters: tables, without memory for the values.
TEST(ModelTable, OfModelsBeyondAnyMachineTakesNextToNothing) {
  struct Known {
    ModelConfig config;
    double parameters, forward_flops;
  };
  const double T = 2048, V = 50257;
  const auto gpt = [&](int64_t layers, int64_t width, int64_t heads) {
    const auto L = static_cast<double>(layers), C = static_cast<double>(width);
    return Known{{.kind = ModelKind::gpt, .layers = layers, .width = width, .heads = heads, .context = 2048},
                 L * (12 * C * C + 13 * C) + (V + T) * C + 2 * C,
                 L * (24 * T * C * C + 4 * T * T * C) + 2 * T * C * V + T * C};
  };
  for (const auto& known : {gpt(96, 12288, 96), gpt(128, 25600, 160)}) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto table = model_table(known.config, 50257);
    getrusage(RUSAGE_SELF, &after);
    EXPECT_EQ(static_cast<double>(table.parameters()), known.parameters);
    double forward = 0;
    for (const auto& layer : table.layers) forward += layer.forward_flops;
    EXPECT_NEAR(forward / known.forward_flops, 1, 1e-12);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 10 * 1024) << "kB";  // address space: see golden/runs
  }
}

TEST(ModelTable, SaysWhatEachParameterIs) {
  const auto table = model_table({.kind = ModelKind::gpt, .layers = 2, .width = 8, .heads = 2, .context = 4}, 30);
  EXPECT_EQ(named(table, "wte.weight").kind, ParameterKind::table);
  EXPECT_EQ(named(table, "wpe.weight").kind, ParameterKind::table);
  EXPECT_EQ(named(table, "h.1.attn.c_attn.weight").kind, ParameterKind::matrix);
  EXPECT_EQ(named(table, "h.1.attn.c_attn.bias").kind, ParameterKind::vector);
  EXPECT_EQ(named(table, "h.1.ln_2.weight").initial.kind, Initial::Kind::ones);
  EXPECT_DOUBLE_EQ(named(table, "h.0.mlp.c_proj.weight").initial.scale, 0.02 / 2);  // of 2 blocks
  EXPECT_TRUE(named(table, "wte.weight").decays());
  EXPECT_FALSE(named(table, "ln_f.bias").decays());
  // The head uses what the embedding has.
  EXPECT_EQ(table.layers.back().uses.back(), table.layers.front().uses.front());
  EXPECT_EQ(table.layers.back().tied, 30 * 8);
  const auto untied =
      model_table({.kind = ModelKind::gpt, .layers = 2, .width = 8, .heads = 2, .context = 4, .untied = true}, 30);
  EXPECT_EQ(untied.layers.back().tied, 0);
  EXPECT_EQ(untied.parameters(), table.parameters() + 30 * 8);
}

TEST(ModelTable, CountsWhatIsFrozen) {
  ModelConfig config{.kind = ModelKind::gpt, .layers = 2, .width = 8, .heads = 2, .context = 4};
  config.freeze = "wte.*, h.0.*";
  const auto frozen = model_table(config, 30);
  EXPECT_EQ(frozen.layers[0].frozen, 30 * 8);
  EXPECT_EQ(frozen.layers[1].frozen, frozen.layers[1].parameters);
  EXPECT_EQ(frozen.layers[2].frozen, 0);
  EXPECT_EQ(frozen.layers[3].frozen, 0);  // the tied table counts where it is first used
  config.freeze.clear();
  config.lora_rank = 2;
  const auto adapted = model_table(config, 30);
  EXPECT_TRUE(named(adapted, "h.0.attn.c_attn.lora_A.weight").adapter);
  EXPECT_FALSE(named(adapted, "h.0.attn.c_attn.weight").adapter);
  EXPECT_EQ(adapted.layers[1].parameters - adapted.layers[1].frozen, 2 * (8 + 24) + 2 * (8 + 8));
  EXPECT_EQ(named(adapted, "h.0.attn.c_attn.lora_A.weight").shape, (std::vector<int64_t>{2, 8}));
  EXPECT_EQ(named(adapted, "h.0.attn.c_attn.lora_B.weight").shape, (std::vector<int64_t>{24, 2}));
}

TEST(ModelTable, HasTheBuffersOfBatchNorms) {
  const auto table = model_table({.kind = ModelKind::resnet18, .image = 32}, 0);
  const auto& stem = table.layers.front();
  ASSERT_EQ(stem.buffers.size(), 3u);
  EXPECT_EQ(stem.buffers[0].name, "bn1.running_mean");
  EXPECT_EQ(stem.buffers[0].elements(), 64);
  EXPECT_EQ(stem.buffers[1].start, 1);
  EXPECT_TRUE(stem.buffers[2].counts);
  EXPECT_EQ(stem.buffers[2].elements(), 1);
  EXPECT_TRUE(named(table, "bn1.weight").wide);
  EXPECT_FALSE(named(table, "conv1.weight").wide);
}

TEST(ModelTable, RefusesWhatNamesNothingAndWhatNobodyCanCount) {
  ModelConfig config{.kind = ModelKind::gpt, .layers = 2, .width = 8, .heads = 2, .context = 4};
  const auto message = [&] {
    try {
      model_table(config, 30);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  config.freeze = "h.7.*";
  EXPECT_THAT(message(), testing::HasSubstr("model.freeze: no parameter has the name h.7.*"));
  config.freeze = "*";
  EXPECT_THAT(message(), testing::HasSubstr("leaves nothing to train"));
  config.freeze.clear();
  config.lora_rank = 2;
  config.lora_targets = "nothing";
  EXPECT_THAT(message(), testing::HasSubstr("names no matrix of this model: they are called h.0.attn.c_attn and"));
  config = {.kind = ModelKind::gpt, .layers = 1000, .width = 1000000, .heads = 2};
  EXPECT_THAT(message(), testing::HasSubstr("more than 1.00 P are too many"));
  config.kind = ModelKind::custom;
  EXPECT_THAT(message(), testing::HasSubstr("model.kind = custom"));
}

}  // namespace
}  // namespace trireme
