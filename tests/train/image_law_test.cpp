// The law for image models: with synchronised BatchNorm every way of splitting a batch gives the same numbers.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/close.h"
#include "tests/train/small.h"

namespace trireme {
namespace {

const std::map<std::string, ModelKind> kinds{{"resnet18", ModelKind::resnet18},   {"resnet34", ModelKind::resnet34},
                                             {"resnet50", ModelKind::resnet50},   {"vgg11", ModelKind::vgg11},
                                             {"vgg16", ModelKind::vgg16},         {"alexnet", ModelKind::alexnet},
                                             {"googlenet", ModelKind::googlenet}, {"cnn", ModelKind::cnn}};

void expect_same_numbers(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.reports.size(), expected.reports.size());
  for (size_t i = 0; i < found.reports.size(); ++i) {
    EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
    EXPECT_NEAR(found.reports[i].grad_norm / expected.reports[i].grad_norm, 1, 1e-9) << "step " << i + 1;
  }
  for (const auto& [name, value] : expected.by_name) {
    SCOPED_TRACE(name);
    expect_close(found.by_name.at(name), value, 1e-9);
  }
  ASSERT_TRUE(found.evaluation && expected.evaluation);  // by the running averages
  EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
  EXPECT_TRUE(expected.accuracy);
  EXPECT_EQ(found.accuracy, expected.accuracy);
}

void expect_the_law(const RunConfig& config, int64_t steps) {
  const auto expected = run_trainer(config, 1, steps);
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    expect_same_numbers(run_trainer(config, ranks, steps), expected);
  }
  SCOPED_TRACE("3 stages");
  auto cut = config;
  cut.parallel.pipe = 3;
  expect_same_numbers(run_trainer(cut, 3, steps), expected);
}

class ImageLaw : public testing::TestWithParam<std::string> {};

TEST_P(ImageLaw, EverySplitGivesTheSameNumbers) { expect_the_law(small_images(kinds.at(GetParam())), 2); }

INSTANTIATE_TEST_SUITE_P(Models, ImageLaw, testing::Values("resnet18", "vgg11", "alexnet", "googlenet", "cnn"),
                         [](const auto& info) { return info.param; });

// The whole product, by hand: make models.
class ImageLawByHand : public testing::TestWithParam<std::string> {};

TEST_P(ImageLawByHand, DISABLED_TenStepsOfEveryModel) { expect_the_law(small_images(kinds.at(GetParam()), 32), 10); }

INSTANTIATE_TEST_SUITE_P(Models, ImageLawByHand,
                         testing::Values("resnet18", "resnet34", "resnet50", "vgg11", "vgg16", "alexnet", "googlenet"),
                         [](const auto& info) { return info.param; });

// Shares of 4 and 2 in microbatches of 2: the second replica takes an empty one, and the statistics are those of
// {0, 1, 4, 5} and {2, 3}. Also with two stages, whose replicas exchange statistics between messages, with roots, and
// with buckets that leave between the exchanges of a backward pass.
TEST(ImageLaw, ReplicasTakeEquallyManyMicrobatches) {
  auto config = small_images(ModelKind::resnet18);
  config.parallel.shares = {2, 1};
  config.train.microbatch = 2;
  const auto expected = run_trainer(config, 2, 2);
  config.parallel.pipe = 2;
  for (const auto schedule : {ScheduleKind::gpipe, ScheduleKind::one_forward_one_backward}) {
    config.parallel.schedule = schedule;
    expect_same_numbers(run_trainer(config, 4, 2), expected);
  }
  config.parallel.pipe = 1;
  config.sync.bucket_mb = 0.1;
  expect_same_numbers(run_trainer(config, 2, 2), expected);
  config.sync.kind = SyncKind::root;
  expect_same_numbers(run_trainer(config, 2, 2), expected);
}

// What the layer table says is kept for the backward pass is about what is.
TEST(ImageLaw, TheTableKnowsWhatIsKept) {
  for (const auto* kind : {"resnet18", "vgg11", "alexnet", "googlenet"}) {
    auto config = small_images(kinds.at(kind), 32);
    config.train.precision = Precision::fp32;
    config.model.dropout = 0;
    const double planned = 6 * static_cast<double>(build_model(config.model, 0)->table(4).activation_bytes());
    run_trainer(config, 1, 2, [&](StageTrainer& trainer, World&, int64_t step) {
      if (step == 1) return;
      EXPECT_NEAR(static_cast<double>(trainer.microbatch_bytes()) / planned, 1, 0.1) << kind;
    });
  }
}

// Alone each replica normalises by its own samples: other numbers, and yet replicas keep the same parameters.
TEST(ImageLaw, LocalStatisticsAreAnotherPromise) {
  auto config = small_images(ModelKind::resnet18);
  const auto whole = run_trainer(config, 2, 1);
  config.model.batch_norm = BatchNormKind::local;
  const auto found = run_trainer(config, 2, 2);
  EXPECT_GT(std::abs(found.reports[0].loss / whole.reports[0].loss - 1), 1e-6);
  EXPECT_TRUE(at::equal(found.parameters[0], found.parameters[1]));
}

}  // namespace
}  // namespace trireme
