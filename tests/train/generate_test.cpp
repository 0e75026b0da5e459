#include "trireme/train/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/convert.h"

namespace trireme {
namespace {

using testing::HasSubstr;

// One small model of text for all tests: after a hundred steps it knows its line by heart.
class Generate : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new TemporaryFolder;
    std::ofstream text(*folder / "text.txt");
    for (int i = 0; i < 200; ++i) text << "a trireme has three banks of oars.\n";
    text.close();
    auto config = small_gpt();
    config.model.dropout = 0;
    config.model.width = 32;
    config.model.context = 16;
    config.model.vocab = 0;
    config.data.kind = DataKind::text;
    config.data.path = *folder / "text.txt";
    config.train.precision = Precision::fp32;
    config.train.steps = 100;
    config.train.batch = 16;
    config.run_dir = *folder / "run";
    run_whole(config);
  }
  static void TearDownTestSuite() {
    delete folder;
    folder = nullptr;
  }

  static Generated from_run(const GenerateOptions& options) {
    at::set_num_threads(1);
    return generate(*folder / "run", options);
  }

  static TemporaryFolder* folder;
};
TemporaryFolder* Generate::folder = nullptr;

TEST_F(Generate, IsAFunctionOfTheSeed) {
  const GenerateOptions options{.prompt = "a tri", .tokens = 40, .temperature = 1.5, .seed = 3};
  const auto first = from_run(options);
  EXPECT_EQ(first.tokens.size(), 40u);
  EXPECT_EQ(first.text.size(), 40u);
  EXPECT_EQ(first.prompt, (std::vector<int64_t>{'a', ' ', 't', 'r', 'i'}));
  EXPECT_EQ(from_run(options).text, first.text);
  auto other = options;
  other.seed = 4;
  EXPECT_NE(from_run(other).text, first.text);
  // Fewer tokens are the beginning of more.
  other = options;
  other.tokens = 10;
  EXPECT_EQ(from_run(other).text, first.text.substr(0, 10));
}

TEST_F(Generate, HandsOutEveryToken) {
  std::vector<int64_t> seen;
  const auto result =
      generate(*folder / "run", {.prompt = "oars", .tokens = 12}, [&](int64_t token) { seen.push_back(token); });
  EXPECT_EQ(seen, result.tokens);
  EXPECT_EQ(result.checkpoint, newest_checkpoint(*folder / "run").folder);
  EXPECT_EQ(generate(result.checkpoint, {.prompt = "oars", .tokens = 12}).tokens, result.tokens);
}

// The alphabet travels with the model, into Hugging Face's layout and back.
TEST_F(Generate, AConvertedModelSpeaksTheSameBytes) {
  const GenerateOptions options{.prompt = "oars", .tokens = 12, .temperature = 0};
  const auto text = from_run(options).text;
  convert(*folder / "run", *folder / "theirs", {});
  EXPECT_EQ(generate(*folder / "theirs", options).text, text);
  convert(*folder / "theirs", *folder / "ours", {});
  EXPECT_EQ(generate(*folder / "ours", options).text, text);
  // With another tokenizer its tokens are nobody's bytes.
  std::filesystem::remove(*folder / "theirs" / "tokenizer.json");
  EXPECT_THAT(refusal_of([&] { generate(*folder / "theirs", options); }), testing::HasSubstr("give --ids"));
}

// Greedy text, against whole forward passes without a cache, up to the size of the window.
TEST_F(Generate, TakesTheLikeliestTokenAtTemperatureZero) {
  const auto found = from_run({.prompt = "a tri", .tokens = 12, .temperature = 0, .seed = 1});
  EXPECT_EQ(from_run({.prompt = "a tri", .tokens = 12, .temperature = 0, .seed = 2}).text, found.text);
  EXPECT_EQ(from_run({.prompt = "a tri", .tokens = 12, .temperature = 5, .top_k = 1}).text, found.text);
  EXPECT_EQ(found.text.substr(0, 5), "reme ");

  c10::NoGradGuard no_grad;
  const auto model = build_model({.kind = ModelKind::gpt, .layers = 2, .width = 32, .heads = 2, .context = 16}, 256);
  ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 1e9,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  load_checkpoint(newest_checkpoint(*folder / "run"), model->parameters(), store, false);
  std::vector<int64_t> all = found.prompt;
  for (size_t i = 0; i + found.prompt.size() < 16; ++i) {
    const auto logits = model->forward(at::tensor(all, at::kLong).unsqueeze(0), {});
    all.push_back(logits[0][-1].argmax().item<int64_t>());
    EXPECT_EQ(all.back(), found.tokens[i]) << i;
  }
}

TEST_F(Generate, GoesOnBeyondTheWindow) {
  const auto text = from_run({.prompt = "a tri", .tokens = 120, .temperature = 0}).text;
  EXPECT_EQ(text.size(), 120u);
  // It keeps making sense after its window of 16 was full several times.
  EXPECT_THAT(text.substr(60), testing::AnyOf(HasSubstr("trireme"), HasSubstr("banks"), HasSubstr("three")));
  // Nor is a prompt that is longer than the window a problem: its end counts.
  const std::string prompt(100, 'x');
  const auto after_long = from_run({.prompt = prompt + "a trireme has thr", .tokens = 3, .temperature = 0});
  EXPECT_EQ(after_long.prompt.size(), 117u);
  EXPECT_EQ(after_long.tokens.size(), 3u);
  EXPECT_EQ(after_long.text, from_run({.prompt = "xxxxxxxxa trireme has thr", .tokens = 3, .temperature = 0}).text);
}

TEST_F(Generate, StartsFromNothing) {
  const auto result = from_run({.tokens = 5});
  EXPECT_EQ(result.prompt, (std::vector<int64_t>{'\n'}));
  EXPECT_EQ(result.tokens.size(), 5u);
}

TEST_F(Generate, ConsidersOnlyTheTopTokens) {
  const auto wide = from_run({.prompt = "a", .tokens = 60, .temperature = 100}).text;  // all but uniform over 256 bytes
  const auto narrow = from_run({.prompt = "a", .tokens = 60, .temperature = 100, .top_k = 2}).text;
  const auto strange = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return c != '\n' && (c < ' ' || c > 'z'); });
  };
  EXPECT_GT(strange(wide), 10);
  EXPECT_EQ(strange(narrow), 0);
}

TEST_F(Generate, RefusesWhatItCannotDo) {
  EXPECT_EQ(refusal_of([] { generate("no/such/run", {}); }),
            "no/such/run does not exist: give a run's folder or a checkpoint");
  auto config = small_mlp();
  config.run_dir = *folder / "mlp";
  run_whole(config);
  EXPECT_THAT(refusal_of([] { generate(*folder / "mlp", {}); }),
              HasSubstr("holds a model that does not generate text"));
  auto tokens = small_gpt();
  tokens.run_dir = *folder / "tokens";
  run_whole(tokens);
  EXPECT_THAT(refusal_of([] { generate(*folder / "tokens", {.prompt = "x"}); }), HasSubstr("are no bytes of text"));
  const auto result = generate(*folder / "tokens", {.tokens = 30});
  EXPECT_EQ(result.tokens.size(), 30u);
  EXPECT_TRUE(result.text.empty());
  EXPECT_TRUE(
      std::all_of(result.tokens.begin(), result.tokens.end(), [](int64_t token) { return token >= 0 && token < 20; }));
}

}  // namespace
}  // namespace trireme
