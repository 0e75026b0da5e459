#include "tests/data/temporary.h"
#include "trireme/api/trainer.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>

#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::mutex making;

torch::nn::Sequential make_net(uint64_t seed = 2) {
  std::lock_guard lock(making);
  torch::manual_seed(seed);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)), torch::nn::ReLU(),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).stride(2)), torch::nn::Tanh(),
                            torch::nn::Flatten(), torch::nn::Linear(72, 5));
  return net;
}

struct Example {
  at::Tensor data, target;
};

struct Images {
  size_t size() const { return 40; }
  Example get(size_t index) const {
    return {at::arange(64, at::kDouble).mul_(0.1 + 0.01 * double(index)).sin_().view({1, 8, 8}),
            at::full({}, static_cast<int64_t>(index % 5), at::kLong)};
  }
};

struct Outcome {
  std::vector<double> losses;
  RunResult result;
};

using Make = std::function<torch::nn::Sequential()>;

Outcome run(
    int ranks, std::vector<std::string> settings, const std::string& name, const Make& make = [] { return make_net(); },
    bool own_loss = false, bool resumes = false) {
  const auto folder = fs::path(process_folder()) / ("trainer-" + name);
  if (!resumes) fs::remove_all(folder);
  for (const auto& setting :
       {std::string("train.precision=fp64"), std::string("train.batch=12"), std::string("optimizer.lr=0.01"),
        std::string("train.steps=6"), std::string("optimizer.warmup=0"), std::string("checkpoint.every=3"),
        "run_dir=" + folder.string()}) {
    settings.insert(settings.begin(), setting);
  }
  Outcome outcome;
  World::run_threads(ranks, [&](World& world) {
    Trainer trainer(world, modules_of(make()), Images(), settings);
    if (own_loss) {
      trainer.set_loss([](const at::Tensor& output, const at::Tensor& targets) {
        return torch::nn::functional::cross_entropy(output, targets);
      });
    }
    std::vector<double> losses;
    trainer.on_step([&](const StepReport& report) { losses.push_back(report.loss); });
    if (resumes) trainer.resume(folder / "checkpoints" / "step-3");
    const auto result = trainer.run();
    if (world.rank() == 0) outcome = {losses, result};
  });
  return outcome;
}

void expect_same(const Outcome& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.losses.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found.losses[i], expected[i], 1e-9 * expected[i]);
}

TEST(Trainer, CutsAListOfModulesIntoStages) {
  const auto alone = run(1, {}, "alone").losses;
  EXPECT_NE(alone.back(), alone.front());
  expect_same(run(2, {}, "replicas"), alone);
  expect_same(run(3, {}, "three"), alone);
  expect_same(run(3, {"parallel.pipe=3", "train.microbatch=2"}, "stages"), alone);
  expect_same(run(4, {"parallel.pipe=2", "train.microbatch=3", "parallel.schedule=gpipe"}, "both"), alone);
  expect_same(
      run(
          2, {"parallel.pipe=2", "parallel.cuts=[4]", "train.microbatch=4"}, "cut", [] { return make_net(); }, true),
      alone);
}

// Alone it is torch's own BatchNorm that runs.
TEST(Trainer, SharesTheStatisticsOfBatchNorms) {
  const auto make = [] {
    std::lock_guard lock(making);
    torch::manual_seed(2);
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                                 torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).stride(2)),
                                 torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(8).affine(false)),
                                 torch::nn::Tanh(), torch::nn::Flatten(), torch::nn::Linear(72, 5));
  };
  const auto alone = run(1, {}, "norm-alone", make).losses;
  expect_same(run(2, {}, "norm-replicas", make), alone);
  expect_same(run(3, {}, "norm-three", make), alone);
  expect_same(run(4, {"parallel.pipe=2", "parallel.schedule=gpipe"}, "norm-both", make), alone);
  const auto apart = run(2, {"model.batch_norm=local"}, "norm-local", make).losses;
  EXPECT_GT(std::abs(apart[0] / alone[0] - 1), 1e-6);
  try {
    run(4, {"parallel.pipe=2", "train.microbatch=3", "parallel.schedule=arrival", "parallel.data=2"}, "norm-no", make);
    FAIL() << "passes come in any order there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.batch_norm"));
  }
}

// Modules of others draw from torch's generator, change their input, and remember: none of it twice.
TEST(Trainer, ComputesModulesAgainAsTheyWere) {
  for (const bool drops : {true, false}) {
    const auto make = [&] {
      std::lock_guard lock(making);
      torch::manual_seed(2);
      torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                                torch::nn::BatchNorm2d(4), torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
      if (drops) net->push_back(torch::nn::Dropout(0.5));
      net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).stride(2)));
      net->push_back(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(8).affine(false)));
      net->push_back(torch::nn::Tanh());
      net->push_back(torch::nn::Flatten());
      net->push_back(torch::nn::Linear(72, 5));
      return net;
    };
    for (const int ranks : drops ? std::vector{1} : std::vector{1, 2}) {  // threads share the generator
      const auto kept = run(ranks, {"train.microbatch=4"}, "kept", make);
      const auto again = run(ranks, {"train.microbatch=4", "memory.activations=recompute"}, "again", make);
      EXPECT_EQ(again.losses, kept.losses) << ranks << " ranks" << (drops ? ", dropout" : "");
      EXPECT_EQ(again.result.eval_loss, kept.result.eval_loss);
    }
  }
}

TEST(Trainer, GoesOnFromACheckpointOnOtherStages) {
  const auto whole = run(2, {"parallel.pipe=2", "train.microbatch=4"}, "resumed").losses;
  const auto rest =
      run(3, {"parallel.pipe=3", "train.microbatch=6"}, "resumed", [] { return make_net(); }, false, /*resumes=*/true);
  expect_same(rest, {whole.begin() + 3, whole.end()});
  EXPECT_EQ(rest.result.steps, 6);
}

TEST(Trainer, CountsTheWorkOfModules) {
  auto net = make_net();
  net->to(at::kDouble);
  const auto model = model_of(modules_of(net), Images().get(0).data.unsqueeze(0));
  const auto table = model->table(8);
  ASSERT_EQ(table.layers.size(), 6u);
  EXPECT_EQ(table.layers[0].name, "0");
  EXPECT_EQ(table.layers[0].parameters, 4 * 9 + 4);
  EXPECT_EQ(table.layers[0].output, 4 * 64);
  EXPECT_DOUBLE_EQ(table.layers[0].forward_flops, 2.0 * 64 * 4 * 9);
  EXPECT_DOUBLE_EQ(table.layers[5].forward_flops, 2.0 * 72 * 5);
  EXPECT_EQ(table.parameters(), 40 + 8 * 4 * 9 + 8 + 72 * 5 + 5);
}

TEST(Trainer, SaysWhatDoesNotFit) {
  World::run_threads(1, [&](World& world) {
    auto modules = modules_of(make_net());
    modules.erase(modules.begin() + 4);  // without flatten
    Trainer trainer(world, modules, Images(), {"train.precision=fp64", "train.batch=4"});
    try {
      trainer.run();
      FAIL() << "it was accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("module 4 of the model (torch::nn::LinearImpl) cannot take"));
      EXPECT_THAT(error.what(), HasSubstr("[1, 8, 3, 3]"));
    }
    EXPECT_THROW(Trainer(world, modules, Images(), {"model.kind=gpt", "data.kind=synthetic"}), Error);
    EXPECT_THROW(Trainer(world, modules, Images(), {"train.stepz=4"}), Error);
  });
}

}  // namespace
}  // namespace trireme
