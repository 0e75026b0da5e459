// Evaluation of checkpoints: the numbers that the runs reported, and those of an ensemble as a plain loop computes
// them.
#include "trireme/train/evaluate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/error.h"
#include "trireme/train/loaded_model.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

RunConfig small_googlenet() {
  RunConfig config = small_gpt();
  config.model = {.kind = ModelKind::googlenet, .dropout = 0.1, .classes = 4, .image = 16};
  config.train.batch = 6;
  config.train.precision = Precision::fp32;
  config.data.samples = 60;
  config.optimizer.warmup = 1;
  return config;
}

RunResult trained(RunConfig config, const fs::path& folder, int ranks = 1) {
  config.train.steps = std::min<int64_t>(config.train.steps, 4);
  config.run_dir = folder;
  return run_whole(config, {}, ranks);
}

TEST(Evaluate, GivesTheNumbersThatARunReported) {
  TemporaryFolder folder;
  int number = 0;
  auto narrow = small_googlenet();
  narrow.train.precision = Precision::bf16;
  auto parts = small_mlp();
  parts.train.microbatch = 3;
  for (const auto& config : {small_gpt(), small_llama(), small_mlp(), small_googlenet(), narrow, parts}) {
    const auto run = trained(config, folder / std::to_string(++number));
    const auto found = evaluate({run.run_dir}, {});
    ASSERT_EQ(found.models.size(), 1u);
    EXPECT_FALSE(found.ensemble);
    EXPECT_EQ(found.models[0].loss, *run.eval_loss) << number;
    EXPECT_EQ(found.models[0].accuracy, run.eval_accuracy) << number;
    EXPECT_EQ(found.models[0].step, 4);
  }
  auto config = small_gpt();
  const auto run = trained(config, folder / "ranks", 3);
  EXPECT_NEAR(evaluate({run.run_dir}, {}).models[0].loss / *run.eval_loss, 1, 1e-9);
}

// The mean of the members' probabilities, sample by sample.
TEST(Evaluate, AveragesTheProbabilitiesOfAnEnsemble) {
  TemporaryFolder folder;
  for (const auto& base : {small_mlp(), small_gpt()}) {
    std::vector<fs::path> runs;
    auto config = base;
    for (const int64_t layers : {1, 2, 3}) {  // the members need not be alike
      config.model.layers = layers;
      runs.push_back(folder / fmt::format("{}-{}", reads_tokens(base.model.kind) ? "gpt" : "mlp", layers));
      trained(config, runs.back());
    }
    const auto found = evaluate(runs, {"train.eval_batches=1"});
    ASSERT_TRUE(found.ensemble);
    const auto data = open_dataset(data_options(base));
    ASSERT_EQ(found.samples, std::min<int64_t>(7, data.validation->size()));
    std::vector<int64_t> all;
    for (int64_t i = 0; i < found.samples; ++i) all.push_back(i);
    const auto batch = data.validation->get(all);
    at::Tensor probability;
    for (const auto& run : runs) {
      const auto model = load_model(find_model(run), Precision::fp64, at::kCPU);
      const auto inputs = batch.inputs.is_floating_point() ? batch.inputs.to(at::kDouble) : batch.inputs;
      const auto mine = at::softmax(model(inputs), -1);
      probability = probability.defined() ? probability + mine : mine;
    }
    probability = (probability / 3).reshape({-1, probability.size(-1)}).contiguous();
    const auto targets = batch.targets.reshape({-1}).contiguous();
    double loss = 0, right = 0;
    for (int64_t row = 0; row < targets.numel(); ++row) {
      const auto target = targets[row].item<int64_t>();
      loss -= std::log(probability[row][target].item<double>());
      right += probability[row].argmax().item<int64_t>() == target;
    }
    const auto items = static_cast<double>(targets.numel());
    EXPECT_NEAR(found.ensemble->loss / (loss / items), 1, 1e-12);
    EXPECT_NE(found.ensemble->loss, found.models[0].loss);
    ASSERT_EQ(found.ensemble->accuracy.has_value(), !reads_tokens(base.model.kind));
    if (found.ensemble->accuracy) {
      EXPECT_EQ(*found.ensemble->accuracy, right / items);
    }
  }
}

TEST(Evaluate, RefusesModelsThatCannotBeAskedTheSame) {
  TemporaryFolder folder;
  const auto gpt = trained(small_gpt(), folder / "gpt").run_dir, mlp = trained(small_mlp(), folder / "mlp").run_dir;
  auto config = small_mlp();
  config.model.classes = 5;
  const auto classes = trained(config, folder / "classes").run_dir;
  config = small_gpt();
  config.model.context = 4;
  const auto brief = trained(config, folder / "brief").run_dir;
  const auto refusal = [](const std::vector<fs::path>& from, const std::vector<std::string>& overrides) {
    return refusal_of([&] { evaluate(from, overrides); });
  };
  EXPECT_THAT(refusal({gpt, mlp}, {}), HasSubstr("holds a model of vectors, and one of tokens is needed"));
  EXPECT_THAT(refusal({mlp, classes}, {}), HasSubstr("its model.classes is 5, and 4 is needed"));
  EXPECT_THAT(refusal({gpt, brief}, {}), HasSubstr("reads sequences of 4 tokens at most"));
  EXPECT_THAT(refusal({gpt}, {"data.validation=0"}), HasSubstr("no samples are held out"));
  EXPECT_THAT(refusal({gpt}, {"model.width=32"}), HasSubstr("would change nothing here"));
  EXPECT_THAT(refusal({gpt}, {"data.vaildation=0"}), HasSubstr("did you mean data.validation?"));
  EXPECT_THAT(refusal({folder / "nowhere"}, {}), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace trireme
