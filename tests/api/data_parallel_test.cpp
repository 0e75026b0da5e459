#include "tests/data/temporary.h"
#include "trireme/api/data_parallel.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "trireme/api/loader.h"
#include "trireme/api/optimizers.h"
#include "trireme/api/saving.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::mutex making;  // torch's generator is one for all threads

struct NetImpl : torch::nn::Module {
  NetImpl(at::ScalarType type, uint64_t seed) {
    std::lock_guard lock(making);
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
    unused = register_module("unused", torch::nn::Linear(2, 2));
    to(type);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }

  torch::nn::Linear first{nullptr}, second{nullptr}, unused{nullptr};
};
TORCH_MODULE(Net);

struct Example {
  at::Tensor data, target;
};

struct Points {
  at::ScalarType type = at::kDouble;
  size_t size() const { return 50; }
  Example get(size_t index) const {
    const auto place = static_cast<double>(index);
    auto x = at::arange(6, type).mul_(0.3).add_(place).sin_();
    return {x, at::full({}, static_cast<int64_t>(index % 3), at::kLong)};
  }
};

struct Trained {
  std::vector<double> losses;
  at::Tensor weight;
};

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(output, targets);
}

// A batch of 8 is dealt unevenly to three ranks.
Trained train_on(int ranks, bool ours, bool accumulates = false) {
  Trained trained;
  World::run_threads(ranks, [&](World& world) {
    DataParallel model(Net(at::kDouble, 5), world, {.bucket_mb = 0.0005});
    std::unique_ptr<ModuleOptimizer> own;
    std::unique_ptr<torch::optim::Optimizer> torchs;
    if (ours) own = std::make_unique<SGD>(model, SGDOptions{.lr = 0.1, .momentum = 0.9});
    if (!ours)
      torchs = std::make_unique<torch::optim::SGD>(model.module()->parameters(),
                                                   torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<double> losses;
    Loader loader(Points(), world, {.batch = 8, .seed = 3, .steps = 10});
    for (auto& batch : loader) {
      at::Tensor loss;
      if (accumulates && batch.inputs.size(0) > 1) {
        const int64_t all = batch.inputs.size(0), half = all / 2;
        const auto part = [&](int64_t first, int64_t count) {
          return loss_of(model.forward(batch.inputs.narrow(0, first, count)), batch.targets.narrow(0, first, count));
        };
        const auto weigh = [&](int64_t count) { return batch.weight * double(count) / double(all); };
        const auto one = part(0, half), other = part(half, all - half);
        loss = (one * double(half) + other * double(all - half)).detach() / double(all);
        model.accumulate(one, weigh(half));
        model.backward(other, weigh(all - half));
      } else {
        loss = loss_of(model.forward(batch.inputs), batch.targets);
        model.backward(loss, batch.weight);
      }
      ours ? own->step() : (void)torchs->step();
      losses.push_back(model.mean(loss.item<double>(), batch.weight));
    }
    if (world.rank() == 0) trained = {losses, model.module()->second->weight.detach().clone()};
  });
  return trained;
}

// The same without any of this library but the order of the samples.
Trained reference() {
  Trained trained;
  Net net(at::kDouble, 5);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const SampleOrder order(50, 8, 3);
  const ExampleDataset<Points> data{Points()};
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<int64_t> samples;
    order.fill(step, 0, 8, samples);
    const auto batch = data.get(samples);
    const auto loss = loss_of(net->forward(batch.inputs), batch.targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    trained.losses.push_back(loss.item<double>());
  }
  trained.weight = net->second->weight.detach().clone();
  return trained;
}

void expect_same(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-12);
  EXPECT_LT((found.weight - expected.weight).norm().item<double>(), 1e-12);
}

TEST(DataParallel, GivesTheSameNumbersOnAnyNumberOfRanks) {
  const auto expected = reference();
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    expect_same(train_on(ranks, /*ours=*/true), expected);
    expect_same(train_on(ranks, /*ours=*/false), expected);
    expect_same(train_on(ranks, true, /*accumulates=*/true), expected);
  }
}

TEST(DataParallel, AdamWIsTorchs) {
  const auto with = [](bool ours) {
    Trained trained;
    World::run_threads(1, [&](World& world) {
      DataParallel model(Net(at::kFloat, 5), world);
      std::unique_ptr<AdamW> own;
      if (ours) own = std::make_unique<AdamW>(model, AdamWOptions{.lr = 0.01});
      torch::optim::AdamW torchs(model.module()->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(1e-2));
      for (auto& batch : Loader(Points{at::kFloat}, world, {.batch = 10})) {
        const auto loss = loss_of(model.forward(batch.inputs), batch.targets);
        model.backward(loss, batch.weight);
        ours ? own->step() : (void)torchs.step();
        trained.losses.push_back(loss.item<double>());
      }
      trained.weight = model.module()->first->bias.detach().clone();  // biases decay too, as torch's do
    });
    return trained;
  };
  const auto ours = with(true), theirs = with(false);
  for (size_t i = 0; i < ours.losses.size(); ++i) EXPECT_NEAR(ours.losses[i], theirs.losses[i], 1e-5);
  EXPECT_LT((ours.weight - theirs.weight).abs().max().item<double>(), 1e-5);
}

struct NormedImpl : torch::nn::Module {
  explicit NormedImpl(at::ScalarType type) {
    std::lock_guard lock(making);
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    // An average over all batches so far, and no gain or bias.
    plain = register_module(
        "plain",
        torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false).momentum(std::nullopt).eps(1e-3)));
    last = register_module("last", torch::nn::Linear(16, 3));
    to(type);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto channels = plain(torch::relu(norm(first(x))).view({x.size(0), 4, 4}));  // [B, C, L]
    return last(torch::tanh(channels.flatten(1)));
  }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr}, plain{nullptr};
};
TORCH_MODULE(Normed);

// The losses of six steps on batches of 8, and what a BatchNorm remembers. Alone it is torch's own that runs.
std::pair<std::vector<double>, at::Tensor> train_normed(int ranks, const DataParallelOptions& options,
                                                        at::ScalarType type = at::kDouble) {
  std::vector<double> losses;
  at::Tensor remembered;
  World::run_threads(ranks, [&](World& world) {
    DataParallel model(Normed(type), world, options);
    SGD optimizer(model, {.lr = 0.1});
    for (auto& batch : Loader(Points{type}, world, {.batch = 8, .steps = 6})) {
      const auto loss = loss_of(model.forward(batch.inputs).to(at::kDouble), batch.targets);
      model.backward(loss, batch.weight);
      optimizer.step();
      const double mean = model.mean(loss.item<double>(), batch.weight);
      if (world.rank() == 0) losses.push_back(mean);
    }
    model.module()->eval();
    const auto before = model.module()->norm->running_var.clone();
    if (world.rank() == 0) model.forward(at::ones({1, 6}, type));  // this rank alone: nothing is exchanged
    EXPECT_TRUE(at::equal(model.module()->norm->running_var, before));
    EXPECT_EQ(model.module()->norm->num_batches_tracked.item<int64_t>(), 6);
    if (world.rank() == 0)
      remembered = at::cat({before, model.module()->norm->running_mean, model.module()->plain->running_mean,
                            model.module()->plain->running_var});
  });
  return {losses, remembered};
}

TEST(DataParallel, SharesTheStatisticsOfBatchNorms) {
  const auto [alone, remembered] = train_normed(1, {});
  EXPECT_LT(alone.back(), alone.front());
  for (const int ranks : {2, 3}) {  // 3: shares of 3, 3 and 2 samples
    const auto [losses, also] = train_normed(ranks, {});
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(losses[i], alone[i], 1e-12) << ranks << " ranks, step " << i;
    EXPECT_LT((also - remembered).abs().max().item<double>(), 1e-12);
  }
  const auto apart = train_normed(2, {.batch_norm = BatchNormKind::local}).first;
  EXPECT_GT(std::abs(apart[0] - alone[0]), 1e-6);
}

TEST(DataParallel, SharesTheStatisticsOfSmallTypesToo) {
  const auto alone = train_normed(1, {}, at::kBFloat16).first, two = train_normed(2, {}, at::kBFloat16).first;
  EXPECT_NEAR(two[0], alone[0], 0.02);
  const auto single = train_normed(1, {}, at::kFloat).first, both = train_normed(2, {}, at::kFloat).first;
  EXPECT_NEAR(both[0], single[0], 1e-5);
}

TEST(DataParallel, LeavesUnusedParametersAsTheyAre) {
  World::run_threads(2, [&](World& world) {
    DataParallel model(Net(at::kDouble, 1), world);
    const auto before = model.module()->unused->weight.detach().clone();
    SGD optimizer(model, {.lr = 0.5});
    model.backward(loss_of(model.forward(at::ones({2, 6}, at::kDouble)), at::zeros({2}, at::kLong)));
    optimizer.step();
    EXPECT_TRUE(at::equal(model.module()->unused->weight, before));
    EXPECT_FALSE(model.module()->unused->weight.grad().defined());  // as torch leaves it
    EXPECT_GT(model.module()->first->weight.grad().abs().sum().item<double>(), 0);
  });
}

TEST(DataParallel, SaysOnceWhatTheLossDoesNotDependOn) {
  const auto said = [](bool frozen) {
    testing::internal::CaptureStderr();
    World::run_threads(1, [&](World& world) {
      DataParallel model(Net(at::kDouble, 1), world);
      if (frozen) {
        for (auto& parameter : model.module()->unused->parameters()) parameter.set_requires_grad(false);
      }
      for (int step = 0; step < 2; ++step)
        model.backward(loss_of(model.forward(at::ones({2, 6}, at::kDouble)), at::zeros({2}, at::kLong)));
    });
    return testing::internal::GetCapturedStderr();
  };
  const std::string note = "the loss does not depend on 2 parameters, which get no gradient. The first: unused.weight";
  const auto text = said(false);
  const auto first = text.find(note);
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("does not depend", first + note.size()), std::string::npos) << text;
  EXPECT_THAT(said(true), testing::Not(HasSubstr("does not depend")));
}

TEST(DataParallel, NamesParametersThatDiffer) {
  try {
    World::run_threads(2, [&](World& world) {
      Net net(at::kDouble, 1);
      const at::NoGradGuard no_grad;
      if (world.rank() == 1) net->second->bias[1] += 1e-12;
      DataParallel model(net, world);
    });
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 of 6 parameters differ between the ranks: second.bias"));
    EXPECT_THAT(error.what(), HasSubstr("manual_seed"));
  }
}

TEST(DataParallel, RefusesWhatItCannotTrain) {
  World::run_threads(1, [&](World& world) {
    const auto refused = [&](const auto& act) -> std::string {
      try {
        act();
      } catch (const Error& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_THAT(refused([&] { DataParallel(torch::nn::ReLU(), world); }), HasSubstr("no parameters that learn"));
    EXPECT_THAT(refused([&] {
                  Net net(at::kDouble, 1);
                  net->second->to(at::kFloat);
                  DataParallel(net, world);
                }),
                HasSubstr("first.weight is Double on cpu, but second.weight is Float on cpu"));
    EXPECT_THAT(refused([&] {
                  DataParallel model(Net(at::kDouble, 1), world);
                  model.backward(model.forward(at::ones({2, 6}, at::kDouble)));
                }),
                HasSubstr("a loss of one element, not of shape [2, 3]"));
    EXPECT_THAT(refused([&] { Loader(Points(), world, {.batch = 0}); }), HasSubstr("cannot be dealt"));
  });
}

// The losses of some steps, from a checkpoint in the folder where it `loads` one.
std::vector<double> losses_of(const fs::path& folder, int ranks, int64_t first, int64_t steps, bool loads, bool saves) {
  std::vector<double> losses;
  World::run_threads(ranks, [&](World& world) {
    DataParallel model(Net(at::kDouble, loads ? 9 : 5), world);
    AdamW optimizer(model, {.lr = 0.02});
    if (loads) {
      EXPECT_EQ(load(folder, model, optimizer), first);
    }
    Loader loader(Points(), world, {.batch = 8, .steps = steps, .first_step = first});
    for (auto& batch : loader) {
      const auto loss = loss_of(model.forward(batch.inputs), batch.targets);
      model.backward(loss, batch.weight);
      optimizer.step();
      const double mean = model.mean(loss.item<double>(), batch.weight);
      if (world.rank() == 0) losses.push_back(mean);
    }
    if (saves) save(folder, model, optimizer);
  });
  return losses;
}

TEST(DataParallel, SavesAndGoesOn) {
  const auto folder = fs::path(process_folder()) / "saved-module";
  fs::remove_all(folder);
  const auto whole = losses_of(folder, 1, 0, 8, false, false);
  losses_of(folder, 2, 0, 4, false, true);
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "step-4" / "model.safetensors"));
  const auto rest = losses_of(folder, 3, 4, 4, true, false);
  for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i], whole[4 + i], 1e-12);
}

// As the library that saved it went on; see tests/old/README.md.
TEST(DataParallel, GoesOnFromAnOldCheckpoint) {
  const std::vector<double> then = {1.2249931460960903, 1.0958974844102982, 1.1060158002595748, 1.1621985208838326};
  for (const int ranks : {1, 3}) {
    const auto now = losses_of(fs::path(TRIREME_SOURCE) / "tests/old/unversioned/module", ranks, 4, 4, true, false);
    ASSERT_EQ(now.size(), then.size());
    for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i] / then[i], 1, 1e-9) << "step " << 5 + i;
  }
}

TEST(DataParallel, SaysOnEveryRankWhyItCouldNotSave) {
  const auto file = fs::path(process_folder()) / "not-a-folder";
  std::ofstream(file) << "in the way";
  World::run_threads(2, [&](World& world) {
    DataParallel model(Net(at::kDouble, 1), world);
    const SGD optimizer(model, {.lr = 0.5});
    try {
      save(file / "run", model, optimizer);
      ADD_FAILURE() << "rank " << world.rank() << " thinks that it was saved";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("the checkpoint of step 0 in " + (file / "run").string() + " was not saved: "));
      EXPECT_THAT(error.what(), HasSubstr("Not a directory"));
    }
  });
}

}  // namespace
}  // namespace trireme
