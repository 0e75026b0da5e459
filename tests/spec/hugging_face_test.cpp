#include "trireme/spec/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

class HuggingFace : public testing::Test {
 protected:
  HuggingFace() : folder_(fmt::format("{}trireme_hugging_face_test.{}", process_folder(), getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~HuggingFace() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }

  template <class Action>
  std::string refusal(Action action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 2) << error.what();
      return error.what();
    }
    return "(accepted)";
  }
  std::string refusal_of(const ordered_json& config) {
    write("config.json", config.dump());
    return refusal([&] { hugging_face::read_config(folder_); });
  }

  std::filesystem::path folder_;
};

ModelConfig some_llama() {
  return {.kind = ModelKind::llama,
          .layers = 3,
          .width = 64,
          .heads = 8,
          .context = 99,
          .vocab = 1000,
          .kv_heads = 2,
          .hidden = 160,
          .rope_theta = 5e5,
          .norm_epsilon = 1e-6,
          .tied = true};
}
ModelConfig some_gpt() {
  return {.kind = ModelKind::gpt, .layers = 3, .width = 64, .heads = 8, .context = 99, .vocab = 1000};
}

std::string model_of(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  const auto yaml = resolved_yaml(config);
  return yaml.substr(0, yaml.find("data:"));
}

TEST_F(HuggingFace, ReadsWhatItWrites) {
  for (const auto& model : {some_llama(), some_gpt()}) {
    write("config.json", hugging_face::config_of(model, "float32").dump());
    EXPECT_EQ(model_of(hugging_face::read_config(folder_)), model_of(model));
  }
}

TEST_F(HuggingFace, ReadsTheThetaOfEveryVersion) {
  auto config = hugging_face::config_of(some_llama(), "float32");
  config.erase("rope_theta");
  write("config.json", config.dump());
  EXPECT_EQ(hugging_face::read_config(folder_).rope_theta, 5e5);
  config.erase("rope_parameters");
  config["rope_theta"] = 7;
  config["rope_scaling"] = nullptr;
  write("config.json", config.dump());
  EXPECT_EQ(hugging_face::read_config(folder_).rope_theta, 7);
  config.erase("rope_theta");
  write("config.json", config.dump());
  EXPECT_EQ(hugging_face::read_config(folder_).rope_theta, 10000);
}

TEST_F(HuggingFace, RefusesWhatItDoesNotCompute) {
  auto config = hugging_face::config_of(some_llama(), "float32");
  config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}};
  EXPECT_THAT(refusal_of(config), HasSubstr("rotary positions of type llama3"));
  config = hugging_face::config_of(some_llama(), "float32");
  config["attention_bias"] = true;
  EXPECT_THAT(refusal_of(config), HasSubstr("attention_bias = true is not supported"));
  config["attention_bias"] = false;
  config["head_dim"] = 16;
  EXPECT_THAT(refusal_of(config), HasSubstr("head_dim = 16 is not supported, only 8"));
  config["head_dim"] = "wide";
  EXPECT_THAT(refusal_of(config), HasSubstr("head_dim = \"wide\" is of the wrong type"));
  config = hugging_face::config_of(some_gpt(), "float32");
  config["activation_function"] = "relu";
  EXPECT_THAT(refusal_of(config), HasSubstr("activation_function = relu"));
  config.erase("n_embd");
  EXPECT_THAT(refusal_of(config), HasSubstr("config.json: n_embd is missing"));
  EXPECT_THAT(refusal_of({{"model_type", "bert"}}), HasSubstr("model_type bert is unknown here"));
  EXPECT_THAT(refusal_of(ordered_json::array()), HasSubstr("is damaged"));
}

TEST_F(HuggingFace, FindsItsFiles) {
  const auto files = [&] { return hugging_face::weight_files(folder_); };
  EXPECT_THAT(refusal(files), HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  write("model.safetensors.index.json", R"({"weight_map": {"a": "x-2", "b": "x-1", "c": "x-2"}})");
  EXPECT_THAT(refusal(files), HasSubstr("names x-1, which is missing"));
  write("x-1", "");
  write("x-2", "");
  EXPECT_EQ(files(), (std::vector{folder_ / "x-1", folder_ / "x-2"}));
  write("model.safetensors.index.json", R"({"weight_map": []})");
  EXPECT_THAT(refusal(files), HasSubstr("names no files"));
  write("model.safetensors", "");
  EXPECT_EQ(files(), (std::vector{folder_ / "model.safetensors"}));
}

TEST_F(HuggingFace, NamesAreOursUpToAPrefix) {
  const auto gpt = some_gpt();
  EXPECT_EQ(hugging_face::our_name(gpt, "transformer.h.0.ln_1.weight"), "h.0.ln_1.weight");
  EXPECT_EQ(hugging_face::our_name(gpt, "h.0.attn.c_attn.bias"), "h.0.attn.c_attn.bias");
  for (const char* name : {"h.0.attn.bias", "transformer.h.11.attn.masked_bias", "lm_head.weight"})
    EXPECT_EQ(hugging_face::our_name(gpt, name), std::nullopt);
  EXPECT_EQ(hugging_face::their_name(gpt, "wte.weight"), "transformer.wte.weight");
  auto llama = some_llama();
  EXPECT_EQ(hugging_face::our_name(llama, "model.layers.0.self_attn.rotary_emb.inv_freq"), std::nullopt);
  EXPECT_EQ(hugging_face::our_name(llama, "lm_head.weight"), std::nullopt);
  llama.tied = false;
  EXPECT_EQ(hugging_face::our_name(llama, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(hugging_face::their_name(llama, "lm_head.weight"), "lm_head.weight");
}

}  // namespace
}  // namespace trireme
