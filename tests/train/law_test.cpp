// The law of this house: every way of splitting the work gives the same numbers.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <string>

#include "tests/close.h"
#include "tests/train/small.h"
#include "trireme/optim/optimizer.h"
#include "trireme/base/error.h"
#include "trireme/spec/share.h"

namespace trireme {
namespace {

RunConfig config_of(const std::string& model) { return model == "gpt" ? small_gpt() : small_mlp(); }

void expect_same_numbers(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.reports.size(), expected.reports.size());
  for (size_t i = 0; i < found.reports.size(); ++i) {
    const auto& mine = found.reports[i];
    const auto& theirs = expected.reports[i];
    EXPECT_NEAR(mine.loss / theirs.loss, 1, 1e-9) << "step " << i + 1;
    EXPECT_NEAR(mine.grad_norm / theirs.grad_norm, 1, 1e-9) << "step " << i + 1;
  }
  expect_close(found.parameters[0], expected.parameters[0], 1e-9);
  // Replicas see the same sums: they stay equal to the last bit.
  for (const auto& replica : found.parameters) EXPECT_TRUE(at::equal(replica, found.parameters[0]));
  ASSERT_TRUE(found.evaluation && expected.evaluation);
  EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
}

class Law : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Law, EverySplitGivesTheSameNumbersInFp64) {
  const auto& [model, ranks] = GetParam();
  auto config = config_of(model);
  const auto expected = run_trainer(config, 1, 10);
  // The run does something that could go wrong: the loss moves, and some steps are clipped.
  EXPECT_GT(std::abs(expected.reports[9].loss - expected.reports[0].loss), 0.01);
  for (const int64_t microbatch : {0, 1, 2, 3}) {
    for (const double bucket_mb : {0.001, 8.0}) {
      SCOPED_TRACE(fmt::format("{} ranks, microbatches of {}, buckets of {} MB", ranks, microbatch, bucket_mb));
      config.train.microbatch = microbatch;
      config.sync.bucket_mb = bucket_mb;
      expect_same_numbers(run_trainer(config, ranks, 10), expected);
    }
  }
}

TEST_P(Law, TheFirstStepIsTheSameInFp32) {
  const auto& [model, ranks] = GetParam();
  auto config = config_of(model);
  config.train.precision = Precision::fp32;
  const auto expected = run_trainer(config, 1, 1).reports[0];
  config.train.microbatch = ranks % 2 + 1;
  config.sync.bucket_mb = 0.001;
  const auto found = run_trainer(config, ranks, 1).reports[0];
  EXPECT_NEAR(found.loss / expected.loss, 1, 1e-4);
  EXPECT_NEAR(found.grad_norm / expected.grad_norm, 1, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Splits, Law, testing::Combine(testing::Values("gpt", "mlp"), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_ranks", std::get<0>(info.param), std::get<1>(info.param));
                         });

// Shares by speed: who works on more samples changes nothing but who works more.
class LawOfShares : public testing::TestWithParam<std::tuple<std::string, std::vector<double>>> {};

TEST_P(LawOfShares, UnevenSharesGiveTheSameNumbers) {
  const auto& [model, shares] = GetParam();
  const int ranks = static_cast<int>(shares.size());
  auto config = config_of(model);
  const auto expected = run_trainer(config, 1, 10);
  config.parallel.shares = shares;
  for (const int64_t microbatch : {0, 1, 2}) {
    SCOPED_TRACE(fmt::format("shares {}, microbatches of {}", fmt::join(shares, " "), microbatch));
    config.train.microbatch = microbatch;
    config.sync.bucket_mb = microbatch == 1 ? 0.001 : 8;
    expect_same_numbers(run_trainer(config, ranks, 10), expected);
  }
  // The shares were really dealt: what a rank keeps for its backward pass grows with its samples.
  config.train.microbatch = 0;
  std::vector<int64_t> bytes(static_cast<size_t>(ranks));
  run_trainer(config, ranks, 2, [&](StageTrainer& trainer, World& world, int64_t) {
    bytes[static_cast<size_t>(world.rank())] = trainer.activation_bytes();
  });
  const auto dealt = deal(config.train.batch, ranks, shares);
  for (size_t i = 0; i + 1 < dealt.size(); ++i)
    EXPECT_EQ(dealt[i].count > dealt[i + 1].count, bytes[i] > bytes[i + 1]) << "ranks " << i << " and " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Shares, LawOfShares,
                         testing::Combine(testing::Values("gpt", "mlp"),
                                          testing::Values(std::vector<double>{3, 1}, std::vector<double>{0.2, 0.9},
                                                          std::vector<double>{5, 2, 1}, std::vector<double>{1, 9, 2})));

TEST(Law, RefusesSharesThatDoNotFitTheRanks) {
  auto config = small_mlp();
  config.parallel.shares = {3, 1};
  EXPECT_THROW(run_trainer(config, 3, 1), Error);
  config.parallel.shares = {100, 1};
  EXPECT_THROW(run_trainer(config, 2, 1), Error);
}

// As many ranks as samples, and a batch larger than the data, which then holds samples twice.
TEST(Law, HoldsAtTheEdges) {
  auto config = small_gpt();
  config.train.batch = 5;
  expect_same_numbers(run_trainer(config, 5, 4), run_trainer(config, 1, 4));
  config = small_mlp();
  config.model.dropout = 0.3;
  config.data.samples = 6;
  config.train.batch = 17;
  config.train.microbatch = 4;
  expect_same_numbers(run_trainer(config, 3, 4), run_trainer(config, 1, 4));
}

// In a larger model the reductions overlap the backward pass for real, and go by several segments.
TEST(Law, HoldsForAWiderModel) {
  auto config = small_mlp();
  config.model.width = 300;
  config.model.layers = 4;
  config.train.batch = 32;
  const auto expected = run_trainer(config, 1, 3);
  config.sync.bucket_mb = 0.5;
  expect_same_numbers(run_trainer(config, 2, 3), expected);
  config.train.microbatch = 5;
  expect_same_numbers(run_trainer(config, 3, 3), expected);
}

// Each bucket has a root that keeps its optimizer state and sends its parameters on.
TEST(Law, HoldsWithARootForEachBucket) {
  for (auto config : {small_gpt(), small_mlp()}) {
    config.sync.bucket_mb = 0.001;
    const auto expected = run_trainer(config, 1, 10);
    config.sync.kind = SyncKind::root;
    for (const int ranks : {1, 2, 3, 4}) {
      std::atomic<int64_t> state_bytes{0}, all_bytes{0};
      const auto found = run_trainer(config, ranks, 10, [&](StageTrainer& trainer, World&, int64_t step) {
        for (const auto& bucket : trainer.store().buckets()) {
          if (step != 1) break;
          for (const auto& [name, tensor] : bucket.state) state_bytes += static_cast<int64_t>(tensor.nbytes());
          const auto rule = make_optimizer(config.optimizer);
          Bucket whole = bucket;
          rule->prepare(whole);
          for (const auto& [name, tensor] : whole.state) all_bytes += static_cast<int64_t>(tensor.nbytes());
        }
      });
      expect_same_numbers(found, expected);
      EXPECT_EQ(state_bytes * ranks, all_bytes) << "the state is there once among " << ranks << " ranks";
    }
  }
}

// A step that is skipped sends nothing, and the one after it finds all parameters in place.
TEST(Law, HoldsWithRootsWhenAStepIsSkipped) {
  auto config = small_mlp();
  config.sync.bucket_mb = 0.001;
  config.train.nonfinite_limit = 3;
  const auto poison = [](StageTrainer& trainer, World& world, int64_t step) {
    if (step != 3 && step != 4) return;
    // One step without an update: a weight of the first rank is not a number for its duration.
    auto& bucket = trainer.store().buckets()[0];
    trainer.while_whole([] {});
    const double value = step == 3 ? std::nan("") : 0.5;
    if (step == 4 || world.rank() == 0) bucket.master.narrow(0, 0, 1).fill_(value);
    ParameterStore::publish(bucket);
  };
  const auto expected = run_trainer(config, 1, 8, poison);
  EXPECT_EQ(expected.progression.skipped, 1);
  config.sync.kind = SyncKind::root;
  const auto found = run_trainer(config, 3, 8, poison);
  EXPECT_EQ(found.progression.skipped, 1);
  for (size_t i = 3; i < 8; ++i) EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9);
}

// The next forward pass begins before the last gradients have come, in pieces and in an order of their own. The norm
// that a step reports is then that of the one before.
TEST(Law, HoldsAheadOfTheGradients) {
  for (auto config : {small_gpt(), small_mlp()}) {
    config.sync.bucket_mb = 0.001;
    config.optimizer.clip = 0;
    config.train.nonfinite_limit = 0;
    const auto expected = run_trainer(config, 1, 10);
    config.sync.order = SyncOrder::forward;
    for (const int ranks : {1, 2, 3, 4}) {
      for (const double credit_mb : {0.0005, 4.0}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} MB at once", ranks, credit_mb));
        config.sync.credit_mb = credit_mb;
        config.train.microbatch = ranks % 3;
        const auto found = run_trainer(config, ranks, 10);
        for (size_t i = 0; i < 10; ++i) {
          EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
          if (i == 0) continue;
          EXPECT_NEAR(found.reports[i].grad_norm / expected.reports[i - 1].grad_norm, 1, 1e-9) << "step " << i + 1;
        }
        expect_close(found.parameters[0], expected.parameters[0], 1e-9);
        for (const auto& replica : found.parameters) EXPECT_TRUE(at::equal(replica, found.parameters[0]));
        EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
      }
    }
  }
}

// Dropout is worth testing only if it does something, and something else in every step.
TEST(Law, DropoutFollowsTheSeed) {
  auto config = small_gpt();
  const auto first = run_trainer(config, 2, 3).losses();
  EXPECT_EQ(run_trainer(config, 2, 3).losses(), first);
  config.model.dropout = 0;
  EXPECT_NE(run_trainer(config, 2, 3).losses(), first);
  config = small_gpt();
  config.train.seed = 2;
  EXPECT_NE(run_trainer(config, 2, 3).losses(), first);
}

}  // namespace
}  // namespace trireme
