#include "trireme/train/stage_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/close.h"
#include "tests/data/temporary.h"
#include "tests/train/small.h"

namespace trireme {
namespace {

using testing::HasSubstr;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Plain gradient descent: an update is exactly −lr · gradient.
RunConfig plain_descent() {
  auto config = small_mlp();
  config.optimizer = {.kind = OptimizerKind::sgd,
                      .lr = 1,
                      .weight_decay = 0,
                      .momentum = 0,
                      .clip = 0,
                      .schedule = LrSchedule::constant,
                      .warmup = 0};
  return config;
}

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::failed) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing failed";
  return "";
}

TEST(StageTrainer, RefusesMoreRanksThanSamples) {
  auto config = small_mlp();
  config.train.batch = 2;
  EXPECT_EQ(refusal_of([&] { run_trainer(config, 3, 1); }),
            "3 ranks cannot share train.batch = 2: give each at least one sample, or start fewer ranks");
  config.train.batch = 8;
  config.data.samples = 2;
  config.data.validation = 0;
  EXPECT_EQ(refusal_of([&] { run_trainer(config, 3, 1); }),
            "the data holds 2 training samples, fewer than the 3 ranks");
}

TEST(StageTrainer, ReportsWhatAStepDid) {
  auto config = small_gpt();
  const auto outcome = run_trainer(config, 2, 4);
  for (int64_t step = 1; step <= 4; ++step) {
    const auto& report = outcome.reports[static_cast<size_t>(step - 1)];
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(report.steps, 10);
    EXPECT_DOUBLE_EQ(report.lr, learning_rate(config.optimizer, step, 10));
    EXPECT_EQ(report.items, "tokens");
    EXPECT_GT(report.items_per_s, 0);
    EXPECT_NEAR(report.items_per_s * report.step_s, 7 * 8, 1e-6);
    EXPECT_GT(report.sent_bytes, 0);
    EXPECT_EQ(report.skipped, 0);
    EXPECT_FALSE(report.memory.empty());
  }
  EXPECT_NEAR(outcome.reports[0].loss, std::log(20.0), 0.2);  // an untrained model knows nothing of 20 tokens
  EXPECT_EQ(outcome.progression.step, 4);
  EXPECT_EQ(outcome.progression.updates, 4);
}

TEST(StageTrainer, Learns) {
  for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    for (auto config : {small_gpt(), small_mlp()}) {
      config.train.precision = precision;
      config.train.steps = 120;
      config.train.batch = 16;
      config.data.samples = 1000;
      const auto losses = run_trainer(config, 2, 120).losses();
      const double before = std::accumulate(losses.begin(), losses.begin() + 10, 0.0);
      const double after = std::accumulate(losses.end() - 10, losses.end(), 0.0);
      EXPECT_LT(after, 0.85 * before) << "precision " << static_cast<int>(precision);
    }
  }
}

TEST(StageTrainer, EvaluatesTheSameOnEverySplit) {
  auto config = small_gpt();
  config.data.samples = 41;
  config.data.validation = 0.32;  // 13 samples held out
  for (const int64_t batches : {1, 100}) {
    config.train.eval_batches = batches;
    config.train.microbatch = 0;
    const double expected = *run_trainer(config, 1, 1).evaluation;
    for (const int ranks : {1, 2, 3, 4}) {
      config.train.microbatch = ranks % 3;
      EXPECT_NEAR(*run_trainer(config, ranks, 1).evaluation / expected, 1, 1e-9) << ranks << " ranks";
    }
  }
  config.train.eval_batches = 0;
  EXPECT_FALSE(run_trainer(config, 2, 1).evaluation);
  config.train.eval_batches = 1;
  config.data.validation = 0;
  EXPECT_FALSE(run_trainer(config, 2, 1).evaluation);
}

// Fewer held-out samples than ranks: some have nothing to evaluate, and all get the answer.
TEST(StageTrainer, EvaluatesLessThanASampleARank) {
  auto config = small_mlp();
  config.data.validation = 0.05;
  const auto alone = run_trainer(config, 1, 1), many = run_trainer(config, 4, 1);
  EXPECT_NEAR(*many.evaluation / *alone.evaluation, 1, 1e-9);
}

TEST(StageTrainer, ClipsTheUpdate) {
  auto config = plain_descent();
  for (const double clip : {0.0, 0.01, 1e6}) {
    config.optimizer.clip = clip;
    at::Tensor before;
    const auto outcome = run_trainer(config, 2, 1, [&](StageTrainer& trainer, World& world, int64_t) {
      if (world.rank() == 0) before = parameters_of(trainer);
    });
    const double norm = outcome.reports[0].grad_norm, moved = (outcome.parameters[0] - before).norm().item<double>();
    EXPECT_GT(norm, 0.01);
    EXPECT_NEAR(moved, clip == 0.01 ? 0.01 : norm, 1e-9);  // the reported norm is the one before clipping
  }
}

// What a rank sends depends on the parameters alone: gradients of microbatches add up where they are.
TEST(StageTrainer, SendsNothingWhileItAccumulates) {
  auto config = small_gpt();
  config.train.batch = 12;
  for (const int ranks : {2, 3}) {
    std::vector<int64_t> sent;
    for (const int64_t microbatch : {0, 1, 3}) {
      config.train.microbatch = microbatch;
      sent.push_back(run_trainer(config, ranks, 2).reports[1].sent_bytes);
    }
    EXPECT_GT(sent[0], 0);
    EXPECT_EQ(sent[1], sent[0]);
    EXPECT_EQ(sent[2], sent[0]);
  }
}

TEST(StageTrainer, StopsEveryRankAtTheSameStep) {
  auto config = small_mlp();
  const Split data = open_dataset(data_options(config));
  std::vector<int64_t> stopped(3);
  World::run_threads(3, [&](World& world) {
    at::set_num_threads(1);
    StageTrainer trainer(config, world, data);
    while (!trainer.stop_agreed()) trainer.step(/*stop=*/world.rank() == 2 && trainer.progression().step == 3);
    stopped[static_cast<size_t>(world.rank())] = trainer.progression().step;
  });
  EXPECT_EQ(stopped, (std::vector<int64_t>{4, 4, 4}));
}

// A poisoned parameter of one rank: the loss of all is not finite, and all leave everything as it was.
TEST(StageTrainer, SkipsStepsThatAreNotFinite) {
  auto config = small_gpt();
  std::vector<at::Tensor> before(2), after(2);
  at::Tensor healthy;
  const auto outcome = run_trainer(config, 2, 6, [&](StageTrainer& trainer, World& world, int64_t step) {
    c10::NoGradGuard no_grad;
    auto poisoned = trainer.model().parameters()[2]->value;
    const auto rank = static_cast<size_t>(world.rank());
    if (step == 3) before[rank] = parameters_of(trainer);
    if (step == 3 && rank == 1) {
      healthy = poisoned.clone();
      poisoned.fill_(infinity);
    }
    if (step == 5 && rank == 1) poisoned.copy_(healthy);
    if (step == 5) after[rank] = parameters_of(trainer);
  });
  EXPECT_TRUE(at::equal(before[0], after[0]));
  EXPECT_TRUE(at::equal(before[1], after[1]));
  EXPECT_FALSE(std::isfinite(outcome.reports[2].loss));
  EXPECT_FALSE(std::isfinite(outcome.reports[3].loss));
  EXPECT_TRUE(std::isfinite(outcome.reports[4].loss));
  EXPECT_EQ(outcome.reports[3].skipped, 2);
  EXPECT_EQ(outcome.progression.step, 6);
  EXPECT_EQ(outcome.progression.updates, 4);
  EXPECT_EQ(outcome.progression.skipped, 2);
  EXPECT_EQ(outcome.progression.skipped_in_a_row, 0);
  EXPECT_TRUE(at::equal(outcome.parameters[0], outcome.parameters[1]));
  EXPECT_FALSE(at::equal(outcome.parameters[0], after[0]));  // training went on
}

TEST(StageTrainer, EndsAfterTooManySkippedSteps) {
  auto config = small_mlp();
  for (const int64_t limit : {0, 2}) {
    config.train.nonfinite_limit = limit;
    int64_t last = 0;
    const auto message = failure_of([&] {
      run_trainer(config, 2, 10, [&](StageTrainer& trainer, World& world, int64_t step) {
        c10::NoGradGuard no_grad;
        if (world.rank() == 0) last = step;
        if (step == 2) trainer.model().parameters()[0]->value.fill_(infinity);
      });
    });
    EXPECT_EQ(last, 2 + limit);
    EXPECT_THAT(message, HasSubstr(fmt::format("not finite for {} steps in a row (train.nonfinite_limit = {})",
                                               limit + 1, limit)));
    EXPECT_THAT(message, HasSubstr("lower optimizer.lr"));
  }
}

// A gradient can overflow where the loss does not.
TEST(StageTrainer, SeesGradientsThatAreNotFinite) {
  auto config = plain_descent();
  config.train.precision = Precision::fp32;
  config.model.layers = 1;
  config.train.nonfinite_limit = 5;
  at::Tensor before;
  const auto outcome = run_trainer(config, 1, 1, [&](StageTrainer& trainer, World&, int64_t) {
    c10::NoGradGuard no_grad;
    // Hidden units of about 1e30 that the head weighs with zero: a finite loss, and squares beyond fp32.
    trainer.model().parameters()[0]->value.mul_(1e30);
    trainer.model().parameters()[2]->value.zero_();
    before = parameters_of(trainer);
  });
  EXPECT_TRUE(std::isfinite(outcome.reports[0].loss));
  EXPECT_FALSE(std::isfinite(outcome.reports[0].grad_norm));
  EXPECT_EQ(outcome.progression.skipped, 1);
  EXPECT_TRUE(at::equal(outcome.parameters[0], before));
}

// Flips the lowest bit of one parameter on one rank after the second step, and says what the others are told.
std::string told_of_divergence(const RunConfig& config, int ranks, int wrong) {
  std::mutex mutex;
  std::vector<std::string> told;
  std::vector<int64_t> steps;
  const auto check_before_step = [&](StageTrainer& trainer, World& world, int64_t step) {
    if (step == 1) return;
    if (step == 3 && world.rank() == wrong) {
      auto bits = trainer.store().buckets()[0].master.view(at::kLong);
      bits[5].bitwise_xor_(1);
    }
    try {
      trainer.check_replicas();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      told.push_back(error.what());
      steps.push_back(step);
      throw;
    }
  };
  EXPECT_THROW(run_trainer(config, ranks, 5, check_before_step), Error);
  EXPECT_THAT(steps, testing::Each(3));
  EXPECT_FALSE(told.empty());
  return told.empty() ? "" : told.front();
}

TEST(StageTrainer, NamesTheReplicaWhoseParametersAreOthers) {
  auto config = small_gpt();
  EXPECT_THAT(told_of_divergence(config, 3, 1), HasSubstr("step 2: rank 1 has other parameters than its replicas"));
  EXPECT_THAT(told_of_divergence(config, 2, 1), HasSubstr("step 2: ranks 0, 1 have different parameters"));
  // Two stages of three replicas: ranks of the other stage are not meant.
  config.parallel.pipe = 2;
  config.train.microbatch = 1;
  EXPECT_THAT(told_of_divergence(config, 6, 3), HasSubstr("rank 3 has other parameters than its replicas"));
}

TEST(StageTrainer, DescribesItself) {
  const auto config = small_gpt();
  const Split data = open_dataset(data_options(config));
  World::run_threads(2, [&](World& world) {
    StageTrainer trainer(config, world, data);
    EXPECT_THAT(trainer.brief(),
                testing::MatchesRegex(".* parameters in 4 layers and 1 bucket on .*; 2 ranks by .*, 7 samples a step"));
  });
}

}  // namespace
}  // namespace trireme
