// Loops as LibTorch's users write them, on ranks and alone: each habit runs twice from the same text, once on a plain
// module with loss.backward(), once on ranks with DataParallel, and what it leaves and sees is the same in fp64.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/data/temporary.h"
#include "trireme/api/data_parallel.h"
#include "trireme/api/optimizers.h"
#include "trireme/api/saving.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using torch::optim::AdamWOptions;  // those of torch; ours are trireme::AdamWOptions
using TorchSgd = torch::optim::SGDOptions;

std::mutex making;  // torch's generator is one for all threads

struct NetImpl : torch::nn::Module {
  explicit NetImpl(uint64_t seed) {
    std::lock_guard lock(making);
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(6, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
    side = register_module("side", torch::nn::Linear(16, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = torch::tanh(first(x));
    return uses_side ? second(hidden) + side(hidden) : second(hidden);
  }

  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr};
  bool uses_side = true;
};
TORCH_MODULE(Net);

enum class Kind { sgd, adamw };

// An optimizer, whoever has made it.
struct Stepper {
  std::function<void(bool)> zero_grad;
  std::function<void()> step;
  std::function<void(double)> set_lr;
};

// What a habit is written against: one rank of a loop, or all of it.
class Loop {
 public:
  explicit Loop(int rank = 0, int ranks = 1) : rank_(rank), ranks_(ranks) {}
  virtual ~Loop() = default;

  Net net{5};
  std::vector<at::Tensor> seen;  // whatever the habit wants to be the same

  virtual at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  virtual void backward(const at::Tensor& loss, double /*weight*/) { loss.backward(); }
  virtual double mean(double value, double /*weight*/) { return value; }
  virtual void accumulate(const at::Tensor& loss, double /*weight*/) { loss.backward(); }
  // Ours on ranks, torch's of the same name and settings in the plain loop.
  virtual Stepper library_optimizer(Kind kind) { return torch_optimizer(kind); }

  Stepper torch_optimizer(Kind kind) {
    if (kind == Kind::sgd)
      return stepper(
          std::make_shared<torch::optim::SGD>(net->parameters(), TorchSgd(0.1).momentum(0.9).weight_decay(0.01)));
    return stepper(std::make_shared<torch::optim::AdamW>(net->parameters(), AdamWOptions(0.02).weight_decay(0.05)));
  }
  static Stepper stepper(const std::shared_ptr<torch::optim::Optimizer>& optimizer) {
    return {[=](bool none) { optimizer->zero_grad(none); }, [=] { optimizer->step(); },
            [=](double lr) {
              for (auto& group : optimizer->param_groups()) group.options().set_lr(lr);
            }};
  }

  // This rank's part of a batch of eight: unevenly dealt to three ranks.
  struct Part {
    at::Tensor x, y;
    double weight;
  };
  Part part(int64_t step) const {
    const int64_t first = 8 * rank_ / ranks_, count = 8 * (rank_ + 1) / ranks_ - first;
    const auto place = at::arange(8, at::kDouble).view({8, 1}) + static_cast<double>(8 * step);
    const auto x = (at::arange(6, at::kDouble) * 0.3 + place).sin();
    const auto y = at::remainder(at::arange(8, at::kLong) + 2 * step, 3);
    return {x.narrow(0, first, count), y.narrow(0, first, count), static_cast<double>(count) / 8};
  }
  // The loss of this step's samples, and the step's backward pass.
  at::Tensor loss(int64_t step) {
    const auto samples = part(step);
    return torch::nn::functional::cross_entropy(forward(samples.x), samples.y);
  }
  double learn(int64_t step) {
    const auto value = loss(step);
    const double weight = part(step).weight;
    backward(value, weight);
    return mean(value.item<double>(), weight);
  }
  void see_gradients() {
    for (const auto& parameter : net->parameters())
      seen.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros({0}, at::kDouble));
  }

 protected:
  const int rank_, ranks_;
};

class ReplicatedLoop final : public Loop {
 public:
  explicit ReplicatedLoop(World& world) : Loop(world.rank(), world.size()), model_(net, world, {.bucket_mb = 0.0005}) {}

  at::Tensor forward(const at::Tensor& x) override { return model_.forward(x); }
  void backward(const at::Tensor& loss, double weight) override { model_.backward(loss, weight); }
  void accumulate(const at::Tensor& loss, double weight) override { model_.accumulate(loss, weight); }
  double mean(double value, double weight) override { return model_.mean(value, weight); }
  Stepper library_optimizer(Kind kind) override {
    std::shared_ptr<ModuleOptimizer> optimizer;
    if (kind == Kind::sgd) {
      optimizer = std::make_shared<SGD>(model_, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    } else {
      optimizer = std::make_shared<AdamW>(model_, trireme::AdamWOptions{.lr = 0.02, .weight_decay = 0.05});
    }
    return {[=](bool none) { optimizer->zero_grad(none); }, [=] { optimizer->step(); },
            [=](double lr) { optimizer->set_lr(lr); }};
  }

 private:
  DataParallel<Net> model_;
};

using Habit = std::function<void(Loop&)>;

void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  if (found.numel() == 0) return;
  EXPECT_LE((found - expected).abs().max().item<double>(), 1e-9 * (1 + expected.abs().max().item<double>())) << what;
}

void expect_as_plain(const Habit& habit, const Habit& plain_habit) {
  Loop plain;
  plain_habit(plain);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    std::vector<std::vector<at::Tensor>> seen(static_cast<size_t>(ranks)), parameters(static_cast<size_t>(ranks));
    World::run_threads(ranks, [&](World& world) {
      ReplicatedLoop loop(world);
      habit(loop);
      for (const auto& parameter : loop.net->parameters())
        parameters[static_cast<size_t>(world.rank())].push_back(parameter.detach().clone());
      seen[static_cast<size_t>(world.rank())] = loop.seen;
    });
    const auto expected = plain.net->named_parameters();
    for (size_t rank = 0; rank < parameters.size(); ++rank) {
      for (size_t i = 0; i < expected.size(); ++i)
        expect_close(parameters[rank][i], expected[i].value().detach(), expected[i].key());
      ASSERT_EQ(seen[rank].size(), plain.seen.size());
      for (size_t i = 0; i < plain.seen.size(); ++i)
        expect_close(seen[rank][i], plain.seen[i], fmt::format("seen {}", i));
    }
  }
}

void expect_as_plain(const Habit& habit) { expect_as_plain(habit, habit); }

// With each optimizer, torch's and ours, and with each way to reset gradients.
void expect_as_plain_with_all(const std::function<void(Loop&, const Stepper&, bool none)>& habit) {
  for (const Kind kind : {Kind::sgd, Kind::adamw}) {
    for (const bool ours : {false, true}) {
      for (const bool none : {true, false}) {
        SCOPED_TRACE(fmt::format("{} {}, set_to_none {}", ours ? "trireme's" : "torch's",
                                 kind == Kind::sgd ? "SGD" : "AdamW", none));
        expect_as_plain(
            [&](Loop& loop) { habit(loop, ours ? loop.library_optimizer(kind) : loop.torch_optimizer(kind), none); });
      }
    }
  }
}

constexpr int64_t steps = 6;

TEST(OwnLoop, ResetsBeforeTheBackwardPass) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      const auto loss = loop.loss(step);
      optimizer.zero_grad(none);
      loop.backward(loss, loop.part(step).weight);
      loop.see_gradients();
      optimizer.step();
    }
  });
}

TEST(OwnLoop, ResetsAfterTheStep) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      loop.learn(step);
      optimizer.step();
      optimizer.zero_grad(none);
    }
  });
}

TEST(OwnLoop, ResetsThroughTheModule) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      loop.net->zero_grad(none);
      loop.learn(step);
      optimizer.step();
    }
  });
}

// Once the parameters have changed, a loop that never resets gradients begins anew, whatever it does to them meanwhile.
TEST(OwnLoop, NeverResets) {
  for (const Kind kind : {Kind::sgd, Kind::adamw}) {
    for (const bool ours : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", ours ? "trireme's" : "torch's", kind == Kind::sgd ? "SGD" : "AdamW"));
      const auto with = [&](bool resets) {
        return [=](Loop& loop) {
          const auto optimizer = ours ? loop.library_optimizer(kind) : loop.torch_optimizer(kind);
          for (int64_t step = 0; step < steps; ++step) {
            if (resets) optimizer.zero_grad(true);
            loop.learn(step);
            torch::nn::utils::clip_grad_norm_(loop.net->parameters(), 0.5);
            loop.net->first->weight.mutable_grad().mul_(0.5);
            loop.net->second->bias.mutable_grad() = loop.net->second->bias.grad() * 2;
            loop.see_gradients();
            optimizer.step();
          }
        };
      };
      expect_as_plain(with(false), with(true));
    }
  }
}

// An update may be too small to change a parameter. It is one all the same. (LibTorch's SGD writes past the version of
// its parameters: it is known by what it changes.)
TEST(OwnLoop, NeverResetsAndUpdatesRoundAway) {
  const auto with = [&](bool resets) {
    return [=](Loop& loop) {
      const auto optimizer = loop.torch_optimizer(Kind::adamw);
      optimizer.set_lr(1e-30);
      for (int64_t step = 0; step < steps; ++step) {
        if (resets) optimizer.zero_grad(true);
        loop.learn(step);
        loop.see_gradients();
        optimizer.step();
      }
    };
  };
  expect_as_plain(with(false), with(true));
}

// Where nobody resets gradients and an optimizer leaves some out, these add up, as in torch; a word is said, once.
TEST(OwnLoop, IsWarnedOfGradientsThatNobodyUses) {
  const auto step_of = [](Loop& loop, bool resets) {
    torch::optim::AdamW one(loop.net->first->parameters(), AdamWOptions(0.02));
    for (int64_t step = 0; step < 4; ++step) {
      if (resets) one.zero_grad();
      loop.learn(step);
      loop.see_gradients();
      one.step();
    }
  };
  testing::internal::CaptureStderr();
  expect_as_plain([&](Loop& loop) { step_of(loop, false); }, [&](Loop& loop) { step_of(loop, true); });
  const auto said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("no optimizer has changed "));
  testing::internal::CaptureStderr();
  expect_as_plain([&](Loop& loop) { step_of(loop, true); });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("no optimizer has changed ")));
}

TEST(OwnLoop, ClipsTheNorm) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad(none);
      loop.learn(step);
      const double norm = torch::nn::utils::clip_grad_norm_(loop.net->parameters(), 0.3);
      loop.seen.push_back(at::full({1}, norm, at::kDouble));
      EXPECT_GT(norm, 0.3);
      optimizer.step();
    }
  });
}

TEST(OwnLoop, ClipsValues) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad(none);
      loop.learn(step);
      torch::nn::utils::clip_grad_value_(loop.net->parameters(), 0.02);
      optimizer.step();
    }
  });
}

TEST(OwnLoop, ReplacesAndScalesGradients) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad(none);
      loop.learn(step);
      auto& first = *loop.net->first;
      first.weight.mutable_grad() = first.weight.grad().clone().sign();
      first.bias.mutable_grad() *= 0.25;
      if (step % 2 == 0) loop.net->second->weight.mutable_grad().reset();  // no update of it
      loop.net->second->bias.mutable_grad().zero_();
      loop.see_gradients();
      optimizer.step();
    }
  });
}

TEST(OwnLoop, AddsUpSeveralBackwardPasses) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t part = 0; part < 3; ++part) loop.learn(3 * step + part);
      loop.see_gradients();
      optimizer.step();
      optimizer.zero_grad(none);
    }
  });
}

TEST(OwnLoop, AddsUpPartsThatAreNotSent) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad(none);
      if (step == 2) {  // begun, and given up
        loop.accumulate(loop.loss(100), loop.part(100).weight);
        optimizer.zero_grad(none);
      }
      for (int64_t part = 0; part < 2; ++part) loop.accumulate(loop.loss(3 * step + part), loop.part(step).weight);
      loop.learn(3 * step + 2);
      optimizer.step();
    }
  });
}

// The second one steps every other time, on gradients of both.
TEST(OwnLoop, HasTwoOptimizersOverDifferentParameters) {
  for (const bool none : {true, false}) {
    expect_as_plain([&](Loop& loop) {
      auto others = loop.net->second->parameters();
      for (const auto& parameter : loop.net->side->parameters()) others.push_back(parameter);
      torch::optim::SGD one(loop.net->first->parameters(), TorchSgd(0.1).momentum(0.9));
      torch::optim::AdamW two(others, AdamWOptions(0.02));
      for (int64_t step = 0; step < steps; ++step) {
        one.zero_grad(none);
        if (step % 2 == 0) two.zero_grad(none);
        loop.learn(step);
        one.step();
        if (step % 2 == 1) two.step();
      }
    });
  }
}

TEST(OwnLoop, HasGroupsOfParametersAndASchedule) {
  for (const bool none : {true, false}) {
    expect_as_plain([&](Loop& loop) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(loop.net->first->parameters(),
                          std::make_unique<AdamWOptions>(AdamWOptions(0.02).weight_decay(0.1)));
      groups.emplace_back(loop.net->second->parameters(),
                          std::make_unique<AdamWOptions>(AdamWOptions(0.005).weight_decay(0)));
      groups.emplace_back(loop.net->side->parameters(), std::make_unique<AdamWOptions>(AdamWOptions(0.01)));
      torch::optim::AdamW optimizer(groups, AdamWOptions(0.01));
      torch::optim::StepLR schedule(optimizer, 2, 0.3);
      for (int64_t step = 0; step < steps; ++step) {
        optimizer.zero_grad(none);
        loop.learn(step);
        optimizer.step();
        schedule.step();
      }
    });
  }
}

TEST(OwnLoop, LowersTheRateOnAPlateau) {
  expect_as_plain([](Loop& loop) {
    torch::optim::SGD optimizer(loop.net->parameters(), TorchSgd(0.5).momentum(0.9));
    torch::optim::ReduceLROnPlateauScheduler schedule(optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.1f,
                                                      0);
    for (int64_t step = 0; step < 2 * steps; ++step) {
      optimizer.zero_grad();
      const double loss = loop.learn(step);  // the mean of all ranks: they decide alike
      optimizer.step();
      schedule.step(static_cast<float>(loss));
      loop.seen.push_back(at::full({1}, optimizer.param_groups()[0].options().get_lr(), at::kDouble));
    }
  });
}

TEST(OwnLoop, ChangesTheRate) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      optimizer.set_lr(0.02 / static_cast<double>(1 + step));
      optimizer.zero_grad(none);
      loop.learn(step);
      optimizer.step();
    }
  });
}

void freeze(torch::nn::Module& module, bool frozen) {
  for (auto& parameter : module.parameters()) parameter.requires_grad_(!frozen);
}

// Thawed and frozen again. Frozen ones keep the last gradient unless it is reset, and torch's optimizers go on using
// it.
TEST(OwnLoop, FreezesAndThawsLater) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < 10; ++step) {
      if (step == 3) freeze(*loop.net->second, true);
      if (step == 6) freeze(*loop.net->second, false);
      optimizer.zero_grad(none);
      loop.learn(step);
      loop.see_gradients();
      optimizer.step();
    }
  });
}

TEST(OwnLoop, ThawsWhatWasFrozenAtFirst) {
  for (const Kind kind : {Kind::sgd, Kind::adamw}) {
    for (const bool ours : {false, true}) {
      for (const bool none : {true, false}) {
        SCOPED_TRACE(fmt::format("ours {}, adamw {}, none {}", ours, kind == Kind::adamw, none));
        const auto habit = [&](Loop& loop) {
          const auto optimizer = ours ? loop.library_optimizer(kind) : loop.torch_optimizer(kind);
          for (int64_t step = 0; step < 9; ++step) {
            if (step == 3) freeze(*loop.net->side, false);
            if (step == 5) freeze(*loop.net->first, false);
            optimizer.zero_grad(none);
            loop.learn(step);
            if (step == 5) loop.see_gradients();
            optimizer.step();
          }
        };
        Loop plain;
        freeze(*plain.net->side, true);
        freeze(*plain.net->first, true);
        habit(plain);
        for (const int ranks : {1, 2, 3}) {
          World::run_threads(ranks, [&](World& world) {
            struct Late final : Loop {  // wrapped when parts of it are frozen
              Late(World& world) : Loop(world.rank(), world.size()), world_(world) {
                freeze(*net->side, true);
                freeze(*net->first, true);
                model.emplace(net, world_);
              }
              at::Tensor forward(const at::Tensor& x) override { return model->forward(x); }
              void backward(const at::Tensor& loss, double weight) override { model->backward(loss, weight); }
              Stepper library_optimizer(Kind kind) override {
                std::shared_ptr<ModuleOptimizer> optimizer;
                if (kind == Kind::sgd) {
                  optimizer =
                      std::make_shared<SGD>(*model, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
                } else {
                  optimizer = std::make_shared<AdamW>(*model, trireme::AdamWOptions{.lr = 0.02, .weight_decay = 0.05});
                }
                return {[=](bool none) { optimizer->zero_grad(none); }, [=] { optimizer->step(); }, {}};
              }
              World& world_;
              std::optional<DataParallel<Net>> model;
            } loop(world);
            habit(loop);
            const auto expected = plain.net->named_parameters();
            const auto found = loop.net->parameters();
            for (size_t i = 0; i < found.size(); ++i)
              expect_close(found[i].detach(), expected[i].value().detach(), expected[i].key());
            for (size_t i = 0; i < plain.seen.size(); ++i) expect_close(loop.seen[i], plain.seen[i], "gradients");
          });
        }
      }
    }
  }
}

TEST(OwnLoop, LeavesParametersOutInSomeSteps) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < 9; ++step) {
      loop.net->uses_side = step % 3 == 1;
      optimizer.zero_grad(none);
      loop.learn(step);
      loop.see_gradients();
      optimizer.step();
    }
  });
}

TEST(OwnLoop, GoesOnAfterAForwardPassThatThrows) {
  expect_as_plain_with_all([](Loop& loop, const Stepper& optimizer, bool none) {
    for (int64_t step = 0; step < steps; ++step) {
      try {
        optimizer.zero_grad(none);
        if (step == 3) loop.forward(at::ones({2, 7}, at::kDouble));  // of another width
        loop.learn(step);
        optimizer.step();
      } catch (const c10::Error&) {
        EXPECT_EQ(step, 3);
      }
    }
  });
}

// A closure gives the loss of all ranks, so that all decide alike.
TEST(OwnLoop, StepsWithAClosure) {
  expect_as_plain([](Loop& loop) {
    torch::optim::LBFGS optimizer(loop.net->parameters(),
                                  torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe"));
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.step([&] {
        optimizer.zero_grad();
        return at::full({}, loop.learn(step), at::kDouble);
      });
    }
  });
}

// The state of torch's optimizer goes through its own files, and the module's through torch's or ours.
TEST(OwnLoop, SavesAndGoesOn) {
  const auto folder = fs::path(process_folder()) / "own-loop";
  fs::create_directories(folder);
  expect_as_plain([&](Loop& loop) {
    static std::atomic<int> number{0};
    const auto mine = folder / std::to_string(number++);  // ranks are threads here: each has files of its own
    {
      torch::optim::AdamW optimizer(loop.net->parameters(), AdamWOptions(0.02));
      for (int64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loop.learn(step);
        optimizer.step();
      }
      torch::save(loop.net, mine.string() + ".module");
      torch::save(optimizer, mine.string() + ".optimizer");
      loop.learn(50);  // what is loaded replaces what has come since
      optimizer.step();
    }
    torch::optim::AdamW optimizer(loop.net->parameters(), AdamWOptions(0.02));
    torch::load(loop.net, mine.string() + ".module");
    torch::load(optimizer, mine.string() + ".optimizer");
    for (int64_t step = 3; step < steps; ++step) {
      optimizer.zero_grad();
      loop.learn(step);
      optimizer.step();
    }
  });
}

// Another type is another memory, as another device is.
TEST(OwnLoop, ConvertsTheModuleAfterItWasWrapped) {
  for (const bool ours : {false, true}) {
    for (const int ranks : {1, 2}) {
      Loop plain;
      const auto optimizer = plain.torch_optimizer(Kind::adamw);
      for (int64_t step = 0; step < steps; ++step) {
        optimizer.zero_grad(true);
        plain.learn(step);
        optimizer.step();
      }
      World::run_threads(ranks, [&](World& world) {
        ReplicatedLoop loop(world);
        loop.net->to(at::kFloat);
        loop.net->to(at::kDouble);
        const at::NoGradGuard no_grad;
        const auto fresh = Net(5)->parameters();  // a float lost digits
        const auto own = loop.net->parameters();
        for (size_t i = 0; i < own.size(); ++i) own[i].detach().copy_(fresh[i]);
        const at::AutoGradMode grad(true);
        const auto steps_of = ours ? loop.library_optimizer(Kind::adamw) : loop.torch_optimizer(Kind::adamw);
        for (int64_t step = 0; step < steps; ++step) {
          steps_of.zero_grad(true);
          loop.learn(step);
          steps_of.step();
        }
        for (size_t i = 0; i < own.size(); ++i)
          expect_close(own[i].detach(), plain.net->parameters()[i].detach(), fmt::format("parameter {}", i));
      });
    }
  }
}

std::string refused(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(OwnLoop, RefusesWhatWouldTrainRanksApart) {
  World::run_threads(2, [](World& world) {
    const at::Tensor x = at::ones({2, 6}, at::kDouble), y = at::zeros({2}, at::kLong);
    DataParallel model(Net(1), world);
    SGD optimizer(model, {.lr = 0.5});
    const auto loss = [&] { return torch::nn::functional::cross_entropy(model.forward(x), y); };
    EXPECT_THAT(refused([&] { loss().backward(); }), HasSubstr("call backward(loss) of the DataParallel"));
    optimizer.zero_grad();
    EXPECT_THAT(refused([&] { model.accumulate(loss()); }), HasSubstr("accepted"));
    EXPECT_THAT(refused([&] { optimizer.step(); }), HasSubstr("step() after accumulate()"));
    EXPECT_THAT(refused([&] { model.backward(loss()); }), HasSubstr("accepted"));
    model.module()->first->bias.mutable_grad() = at::ones({3}, at::kDouble);
    EXPECT_THAT(refused([&] { optimizer.step(); }),
                HasSubstr("the gradient of first.bias has shape [3], the parameter [16]"));
  });
}

// Also while another rank of this process is in a backward pass of its own.
TEST(OwnLoop, RefusesWhatWouldTrainRanksApartWhileOthersAreAtIt) {
  std::atomic<bool> begun{false}, tried{false};
  World::run_threads(2, [&](World& world) {
    const at::Tensor x = at::ones({2, 6}, at::kDouble), y = at::zeros({2}, at::kLong);
    DataParallel model(Net(1), world);
    auto loss = torch::nn::functional::cross_entropy(model.forward(x), y);
    if (world.rank() == 0) {
      loss.register_hook([&](const at::Tensor& gradient) {
        begun = true;
        while (!tried) std::this_thread::yield();
        return gradient;
      });
    } else {
      while (!begun) std::this_thread::yield();
      EXPECT_THAT(refused([&] { loss.backward(); }), HasSubstr("call backward(loss) of the DataParallel"));
      tried = true;
      loss = torch::nn::functional::cross_entropy(model.forward(x), y);
    }
    EXPECT_EQ(refused([&] { model.backward(loss); }), "accepted");
  });
}

// One wrapped module's loss goes through another one: as in torch, the other's gradients are there and are not
// averaged.
TEST(OwnLoop, GoesThroughAnotherWrappedModule) {
  World::run_threads(2, [](World& world) {
    torch::nn::Linear linear{nullptr};
    {
      std::lock_guard lock(making);
      torch::manual_seed(1);
      linear = torch::nn::Linear(2, 6);
    }
    DataParallel maker(linear, world);
    Net judge(3);
    DataParallel judged(judge, world);
    judged.module()->to(at::kDouble);
    maker.module()->to(at::kDouble);
    torch::optim::SGD optimizer(maker.module()->parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      maker.backward(judged.forward(maker.forward(at::ones({2, 2}, at::kDouble))).sum());
      EXPECT_GT(judge->first->weight.grad().abs().sum().item<double>(), 0);
      optimizer.step();
      judge->zero_grad();
      judged.backward(judged.forward(at::ones({2, 6}, at::kDouble)).sum());
    }
  });
}

// Updates that leave a parameter out are known to a checkpoint: Adam's corrections are of each one's own updates.
TEST(OwnLoop, ResumesCountsOfParametersThatWereLeftOut) {
  const auto folder = fs::path(process_folder()) / "left-out";
  fs::remove_all(folder);
  const auto train = [&](World& world, Net net, int64_t first, int64_t last, bool loads, bool saves) {
    DataParallel model(net, world);
    AdamW optimizer(model, {.lr = 0.02});
    if (loads) {
      EXPECT_EQ(load(folder, model, optimizer), first);
    }
    Loop samples;
    for (int64_t step = first; step < last; ++step) {
      net->uses_side = step >= 2;
      const auto part = samples.part(step);
      optimizer.zero_grad();
      model.backward(torch::nn::functional::cross_entropy(model.forward(part.x), part.y));
      optimizer.step();
    }
    if (saves) save(folder, model, optimizer);
    return net->side->weight.detach().clone();
  };
  World::run_threads(1, [&](World& world) {
    const auto whole = train(world, Net(5), 0, 6, false, false);
    train(world, Net(5), 0, 3, false, true);
    expect_close(train(world, Net(7), 3, 6, true, false), whole, "side.weight");
  });
}

}  // namespace
}  // namespace trireme
