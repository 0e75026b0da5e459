// The average of checkpoints is the mean of their tensors, to the last bit of what a plain loop computes.
#include "trireme/train/average.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/error.h"
#include "trireme/base/tensor_files.h"
#include "trireme/train/loaded_model.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

template <class Number>
std::vector<double> numbers_in(std::span<const std::byte> bytes) {
  std::vector<Number> values(bytes.size() / sizeof(Number));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

std::vector<double> numbers_of(const FoundTensor& found) {
  switch (found.info->dtype) {
    case DType::f64: return numbers_in<double>(found.bytes());
    case DType::f32: return numbers_in<float>(found.bytes());
    case DType::i64: return numbers_in<int64_t>(found.bytes());
    default: ADD_FAILURE() << "type of " << found.info->name; return {};
  }
}

double as_stored(double value, DType dtype) {
  return dtype == DType::f32 ? static_cast<float>(value) : dtype == DType::i64 ? std::nearbyint(value) : value;
}

// Compares every tensor of an average with the loop that says what it should be.
void expect_mean(const Averaged& averaged, const std::vector<fs::path>& from, const std::vector<double>& weights) {
  const TensorFiles found(find_checkpoint(averaged.to).model_files);
  std::vector<std::unique_ptr<TensorFiles>> sources;
  for (const auto& path : from) sources.push_back(std::make_unique<TensorFiles>(find_checkpoint(path).model_files));
  ASSERT_EQ(found.size(), sources[0]->size());
  ASSERT_GT(found.size(), 0u);
  for (const auto& tensor : found.all()) {
    std::vector<double> sum;
    double total = 0;
    for (size_t k = 0; k < sources.size(); ++k) {
      const auto source = sources[k]->find(tensor.info->name);
      ASSERT_TRUE(source) << tensor.info->name;
      EXPECT_EQ(source.info->shape, tensor.info->shape);
      const auto values = numbers_of(source);
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += weights[k] * values[i];
      total += weights[k];
    }
    const auto mean = numbers_of(tensor);
    ASSERT_EQ(mean.size(), sum.size());
    int wrong = 0;
    for (size_t i = 0; i < mean.size(); ++i) wrong += mean[i] != as_stored(sum[i] / total, tensor.info->dtype);
    EXPECT_EQ(wrong, 0) << tensor.info->name;
  }
}

fs::path trained(const TemporaryFolder& folder, const std::string& name, RunConfig config, int64_t seed,
                 int ranks = 1) {
  config.train.seed = seed;
  config.train.steps = 2;
  config.run_dir = folder / name;
  run_whole(config, {}, ranks);
  return folder / name;
}

std::string refusal(const std::vector<fs::path>& from, const fs::path& to, const std::vector<double>& weights = {}) {
  const auto what = refusal_of([&] { average(from, weights, to); });
  EXPECT_FALSE(fs::exists(to) || fs::exists(to.string() + ".partial")) << what;
  return what;
}

TEST(Average, IsTheMeanOfEveryTensor) {
  TemporaryFolder folder;
  auto wide = small_gpt(), narrow = small_gpt();
  narrow.train.precision = Precision::fp32;
  for (const auto& config : {wide, narrow}) {
    const auto name = config.train.precision == Precision::fp64 ? std::string("fp64") : std::string("fp32");
    std::vector<fs::path> all;
    for (int64_t seed : {1, 2, 3}) all.push_back(trained(folder, fmt::format("{}-{}", name, seed), config, seed));
    for (size_t count : {1, 2, 3}) {
      const std::vector<fs::path> some(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
      const auto to = folder / fmt::format("{}-mean-{}", name, count);
      expect_mean(average(some, {}, to), some, std::vector<double>(count, 1.0));
    }
    expect_mean(average(all, {2, 0, 0.25}, folder / (name + "-weighted")), all, {2, 0, 0.25});
  }
}

TEST(Average, AveragesWhatBatchNormsRemember) {
  TemporaryFolder folder;
  RunConfig config = small_gpt();
  config.model = {.kind = ModelKind::googlenet, .classes = 4, .image = 16};
  config.train.batch = 6;
  config.train.precision = Precision::fp32;
  config.data.samples = 30;
  config.optimizer.warmup = 1;
  std::vector<fs::path> from{trained(folder, "a", config, 1)};
  config.train.microbatch = 3;
  from.push_back(trained(folder, "b", config, 2));
  // Counts of batches, 2 and 4, become a whole number again: the nearest to 8/3.
  const auto averaged = average(from, {2, 1}, folder / "mean");
  expect_mean(averaged, from, {2, 1});
  const TensorFiles files(find_checkpoint(averaged.to).model_files);
  const auto one = TensorFiles(find_checkpoint(from[0]).model_files);
  const auto name = std::string("conv1.bn.running_mean");
  ASSERT_TRUE(files.find(name));
  EXPECT_NE(numbers_of(files.find(name)), numbers_of(one.find(name)));
  EXPECT_EQ(numbers_of(files.find("conv1.bn.num_batches_tracked")), std::vector<double>{3});
}

TEST(Average, TakesCheckpointsOfAnyCut) {
  TemporaryFolder folder;
  auto config = small_gpt();
  const auto whole = trained(folder, "whole", config, 1);
  config.parallel.pipe = 2;
  const auto cut = trained(folder, "cut", config, 2, 2);
  ASSERT_GT(find_checkpoint(cut).model_files.size(), 1u);
  expect_mean(average({whole, cut}, {}, folder / "mean"), {whole, cut}, {1, 1});
  expect_mean(average({cut, whole}, {}, folder / "mean2"), {cut, whole}, {1, 1});
}

TEST(Average, IsACheckpointThatARunGoesOnFrom) {
  TemporaryFolder folder;
  auto config = small_gpt();
  const std::vector<fs::path> from{trained(folder, "a", config, 1), trained(folder, "b", config, 1)};
  const auto averaged = average(from, {}, folder / "mean");
  config.train.seed = 1;
  config.train.steps = 5;
  const auto result = run_whole(config, {.resume = true, .resume_from = averaged.to});
  EXPECT_EQ(result.steps, 5);
  EXPECT_EQ(result.run_dir, averaged.to);
  // The optimizer began anew: three updates of its own, after two steps that others made.
  const auto info = find_checkpoint(averaged.to);
  EXPECT_EQ(info.step, 5);
  EXPECT_EQ(info.progression.updates, 3);
  EXPECT_FALSE(info.optimizer_files.empty());
}

TEST(Average, RefusesOtherModelsAndWrongWeights) {
  TemporaryFolder folder;
  const auto config = small_gpt();
  const auto a = trained(folder, "a", config, 1), b = trained(folder, "b", config, 2), to = folder / "mean";
  auto other = config;
  other.model.heads = 4;  // the same tensors, and another model
  EXPECT_THAT(refusal({a, trained(folder, "heads", other, 1)}, to), HasSubstr("model.heads is 2 in the first and 4"));
  other = config;
  other.model.vocab = 24;
  EXPECT_THAT(refusal({a, trained(folder, "vocab", other, 1)}, to),
              HasSubstr("wte.weight has shape [20, 16] in the first and [24, 16] in the other"));
  EXPECT_THAT(refusal({a, trained(folder, "mlp", small_mlp(), 1)}, to), HasSubstr("model.kind is gpt in the first"));
  EXPECT_THAT(refusal({a, folder / "nowhere"}, to), HasSubstr("does not exist"));
  EXPECT_THAT(refusal({a, b}, to, {1}), HasSubstr("1 weight for 2 checkpoints"));
  EXPECT_THAT(refusal({a, b}, to, {1, -1}), HasSubstr("-1 is no weight"));
  EXPECT_THAT(refusal({a, b}, to, {0, 0}), HasSubstr("one of them must be above 0"));
  EXPECT_THAT(refusal_of([&] { average({a, b}, {}, a); }), HasSubstr("exists already"));
}

}  // namespace
}  // namespace trireme
