// Distillation: the loss is the formula, and every split of the work gives the same numbers.
#include "trireme/train/teacher.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/close.h"
#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/data/order.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<double> softmax_of(const std::vector<double>& scores, double temperature) {
  double sum = 0;
  std::vector<double> values;
  for (const double score : scores) values.push_back(std::exp(score / temperature));
  for (const double value : values) sum += value;
  for (double& value : values) value /= sum;
  return values;
}

// Three items of four classes, of which the second is not learnt.
TEST(Distillation, IsTheFormula) {
  const std::vector<std::vector<double>> student{{1, 2, -1, 0.5}, {0, 3, 1, 1}, {-2, 0.25, 4, 1}};
  const std::vector<std::vector<double>> teacher{{0, 1, 1, -3}, {5, 0, 0, 0}, {0.5, 0.5, 3, -1}};
  const double temperature = 2.5;
  const auto tensor = [](const std::vector<std::vector<double>>& rows) {
    auto values = at::empty({3, 4}, at::kDouble);
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 0; c < 4; ++c) values[r][c] = rows[static_cast<size_t>(r)][static_cast<size_t>(c)];
    return values;
  };
  auto scores = tensor(student).requires_grad_(true);
  const auto targets = at::tensor({int64_t{2}, ignored_target, int64_t{0}}, at::kLong);
  const auto found = distillation_sum(scores, tensor(teacher), targets, temperature);
  found.backward();

  double expected = 0;
  for (size_t r : {0u, 2u}) {
    const auto p = softmax_of(teacher[r], temperature), q = softmax_of(student[r], temperature);
    for (size_t c = 0; c < 4; ++c) {
      expected += temperature * temperature * p[c] * std::log(p[c] / q[c]);
      const double slope = temperature * (q[c] - p[c]);
      EXPECT_NEAR(scores.grad()[static_cast<int64_t>(r)][static_cast<int64_t>(c)].item<double>(), slope, 1e-12);
    }
  }
  EXPECT_NEAR(found.item<double>(), expected, 1e-12);
  EXPECT_EQ(scores.grad()[1].abs().sum().item<double>(), 0);
}

// Teachers for the small models, of other kinds and sizes than their students.
class Distilled : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new TemporaryFolder;
    train_teacher(small_llama(), "tokens");
    auto vectors = small_mlp();
    vectors.model.width = 24;
    train_teacher(vectors, "vectors");
    auto images = small_images(ModelKind::googlenet);
    train_teacher(images, "images");
  }
  static void TearDownTestSuite() {
    delete folder;
    folder = nullptr;
  }
  static void train_teacher(RunConfig config, const std::string& name) {
    config.train.steps = 6;
    config.run_dir = *folder / name;
    run_whole(config);
  }
  static RunConfig small_images(ModelKind kind) {
    auto config = small_gpt();
    config.model = {.kind = kind, .dropout = 0.1, .classes = 4, .image = 32};
    config.data.samples = 30;
    config.optimizer.lr = 1e-3;
    return config;
  }
  static RunConfig student(RunConfig config, const std::string& teacher) {
    config.distill = {.from = *folder / teacher, .weight = 0.3, .temperature = 3};
    return config;
  }
  static TemporaryFolder* folder;
};
TemporaryFolder* Distilled::folder = nullptr;

void expect_same(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.reports.size(), expected.reports.size());
  for (size_t i = 0; i < found.reports.size(); ++i) {
    EXPECT_NEAR(found.reports[i].loss / expected.reports[i].loss, 1, 1e-9) << "step " << i + 1;
    ASSERT_TRUE(found.reports[i].distillation && expected.reports[i].distillation);
    EXPECT_NEAR(*found.reports[i].distillation / *expected.reports[i].distillation, 1, 1e-9) << "step " << i + 1;
  }
  ASSERT_EQ(found.by_name.size(), expected.by_name.size());
  for (const auto& [name, value] : expected.by_name) expect_close(found.by_name.at(name), value, 1e-8);
  EXPECT_NEAR(*found.evaluation / *expected.evaluation, 1, 1e-9);
}

// The first step's loss, from nothing but the models, the batch and torch's operations.
TEST_F(Distilled, TheLossOfAStepIsAnExplicitComputation) {
  auto config = student(small_gpt(), "tokens");
  config.model.dropout = 0;
  const auto report = run_trainer(config, 1, 1).reports[0];
  const auto data = open_dataset(data_options(config));
  std::vector<int64_t> samples;
  SampleOrder(data.train->size(), config.train.batch, 1).fill(0, 0, config.train.batch, samples);
  const auto batch = data.train->get(samples);
  auto model = build_model(config.model, 20);
  model->initialize(1);
  const auto teacher = load_model(find_model(config.distill.from), Precision::fp64, at::kCPU);
  c10::NoGradGuard no_grad;
  const auto mine = model->forward(batch.inputs, Pass{}).reshape({-1, 20});
  const auto theirs = teacher(batch.inputs).reshape({-1, 20});
  const auto items = static_cast<double>(mine.size(0));
  const auto entropy = at::cross_entropy_loss(mine, batch.targets.reshape({-1})).item<double>();
  const auto p = at::softmax(theirs / 3, -1);
  const auto term = 9 * (p * (p.log() - at::softmax(mine / 3, -1).log())).sum().item<double>() / items;
  EXPECT_NEAR(report.loss, 0.7 * entropy + 0.3 * term, 1e-12);
  EXPECT_NEAR(*report.distillation, term, 1e-12);
  EXPECT_GT(term, 1e-4);  // or nothing was compared
}

TEST_F(Distilled, EverySplitGivesTheSameNumbers) {
  for (auto config : {student(small_gpt(), "tokens"), student(small_mlp(), "vectors")}) {
    const auto expected = run_trainer(config, 1, 6);
    EXPECT_GT(std::abs(expected.reports[5].loss - expected.reports[0].loss), 1e-3);
    for (const int64_t microbatch : {0, 1, 3}) {
      config.train.microbatch = microbatch;
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks, microbatches of {}", ranks, microbatch));
        expect_same(run_trainer(config, ranks, 6), expected);
      }
    }
    config.train.microbatch = 2;
    config.parallel.pipe = 2;
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("two stages on {} ranks", ranks));
      expect_same(run_trainer(config, ranks, 6), expected);
    }
  }
}

// A teacher with BatchNorms answers by what it remembers, however many samples it is asked at once.
TEST_F(Distilled, ImageModelsLearnFromEachOther) {
  auto config = student(small_images(ModelKind::alexnet), "images");
  config.model.dropout = 0;
  const auto expected = run_trainer(config, 1, 2);
  config.train.microbatch = 2;
  expect_same(run_trainer(config, 2, 2), expected);
}

TEST_F(Distilled, AWeightOfNothingChangesNothing) {
  auto config = student(small_gpt(), "tokens");
  config.distill.weight = 0;
  const auto found = run_trainer(config, 2, 4);
  config.distill.from.clear();
  const auto expected = run_trainer(config, 2, 4);
  EXPECT_EQ(found.losses(), expected.losses());
  EXPECT_FALSE(expected.reports[0].distillation);
  EXPECT_TRUE(at::equal(found.parameters[0], expected.parameters[0]));
}

TEST_F(Distilled, AStudentComesToSayWhatItsTeacherSays) {
  auto config = student(small_mlp(), "vectors");
  config.distill.weight = 1;
  config.train.steps = 60;
  const auto reports = run_trainer(config, 1, 60).reports;
  EXPECT_LT(*reports[59].distillation, 0.2 * *reports[0].distillation);
  EXPECT_EQ(reports[59].loss, *reports[59].distillation);
}

TEST_F(Distilled, ACheckpointHoldsTheStudentAloneAndResumes) {
  auto config = student(small_gpt(), "tokens");
  config.train.steps = 4;
  config.checkpoint.every = 2;
  config.run_dir = *folder / "student";
  const auto whole = run_whole(config, {}, 2);
  const Safetensors file(fs::path(whole.checkpoint) / "model.safetensors");
  const auto model = build_model(config.model, 20);
  EXPECT_EQ(file.tensors().size(), model->parameters().size());
  for (const auto& parameter : model->parameters()) EXPECT_NE(file.find(parameter->name), nullptr) << parameter->name;
  const auto resumed = run_whole(config, {.resume = true, .resume_from = *folder / "student/checkpoints/step-2"}, 2);
  EXPECT_EQ(resumed.loss, whole.loss);

  // A student may teach, and nobody needs its own teacher for that.
  auto next = config;
  next.distill.from = *folder / "moved";
  next.run_dir = *folder / "next";
  fs::rename(*folder / "student", *folder / "moved");
  fs::rename(*folder / "tokens", *folder / "gone");
  run_whole(next);
  fs::rename(*folder / "gone", *folder / "tokens");
}

TEST_F(Distilled, RefusesTeachersThatCannotTeach) {
  const auto refused = [](const RunConfig& config) { return refusal_of([&] { check_run(config, 1); }); };
  auto config = student(small_gpt(), "tokens");
  config.model.vocab = 24;
  EXPECT_THAT(refused(config), HasSubstr("its vocabulary (model.vocab) is 20, and 24 is needed"));
  config = student(small_gpt(), "tokens");
  config.model.context = 16;
  EXPECT_THAT(refused(config), HasSubstr("reads sequences of 8 tokens at most"));
  config = student(small_mlp(), "vectors");
  config.model.classes = 3;
  EXPECT_THAT(refused(config), HasSubstr("its model.classes is 4, and 3 is needed"));
  EXPECT_THAT(refused(student(small_gpt(), "vectors")), HasSubstr("holds a model of vectors, and one of tokens"));
  EXPECT_THAT(refused(student(small_gpt(), "nowhere")), HasSubstr("distill.from: "));
  config = student(small_gpt(), "tokens");
  config.memory.limit_mb = 0.2;
  EXPECT_THAT(refused(config), HasSubstr("the teacher "));
}

}  // namespace
}  // namespace trireme
