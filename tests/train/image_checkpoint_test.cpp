// Running statistics are part of a checkpoint: a run that is resumed goes on bit for bit, and on any other mesh.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/close.h"
#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/safetensors.h"
#include "trireme/train/checkpoint.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

RunConfig small_googlenet(const fs::path& run_dir) {
  RunConfig config = small_gpt();
  config.model = {.kind = ModelKind::googlenet, .dropout = 0.1, .classes = 4, .image = 16};
  config.train.batch = 6;
  config.train.steps = 4;
  config.train.precision = Precision::fp32;
  config.data.samples = 30;
  config.optimizer.warmup = 1;
  config.optimizer.lr = 1e-4;
  config.checkpoint.every = 2;
  config.run_dir = run_dir;
  return config;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const RunOptions resume{.resume = true};

TEST(ImageCheckpoint, ResumesBitForBit) {
  for (const auto kind : {BatchNormKind::synchronised, BatchNormKind::local}) {
    TemporaryFolder folder;
    auto config = small_googlenet(folder / "whole");
    config.model.batch_norm = kind;
    const auto whole = run_whole(config, {}, 2);
    fs::create_directories(folder / "part/checkpoints");
    fs::copy(folder / "whole/checkpoints/step-2", folder / "part/checkpoints/step-2", fs::copy_options::recursive);
    config.run_dir = folder / "part";
    const auto resumed = run_whole(config, resume, 2);
    EXPECT_EQ(resumed.loss, whole.loss);
    EXPECT_EQ(resumed.eval_loss, whole.eval_loss);
    ASSERT_TRUE(whole.eval_accuracy);
    EXPECT_EQ(resumed.eval_accuracy, whole.eval_accuracy);
    for (const auto* file : {"model.safetensors", "optimizer.safetensors"}) {
      EXPECT_EQ(text_of(folder / "part/checkpoints/step-4" / file), text_of(folder / "whole/checkpoints/step-4" / file))
          << file;
    }
  }
}

TEST(ImageCheckpoint, HoldsRunningStatisticsInTorchvisionsLayout) {
  TemporaryFolder folder;
  auto config = small_googlenet(folder / "run");
  config.train.steps = 2;
  config.train.microbatch = 3;
  run_whole(config);
  const Safetensors file(folder / "run/checkpoints/step-2/model.safetensors");
  EXPECT_EQ(file.tensors().size(), 344u);
  const auto* count = file.find("inception5b.branch4.1.bn.num_batches_tracked");
  ASSERT_NE(count, nullptr);
  EXPECT_EQ(count->dtype, DType::i64);
  int64_t batches = 0;
  std::memcpy(&batches, file.bytes(*count).data(), sizeof batches);
  EXPECT_EQ(batches, 4);  // two microbatches in each of two steps
  const auto* weight = file.find("conv3.conv.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->shape, (std::vector<int64_t>{192, 64, 3, 3}));
  // In the order of the dims, though it lies otherwise in memory.
  const auto info = open_checkpoint(folder / "run/checkpoints/step-2");
  const auto model = build_model(config.model, 0);
  ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 1e9,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  model->buffers_to(at::kFloat, at::kCPU);
  load_checkpoint(info, model->parameters(), store, false, true, model->buffers());
  for (const auto& parameter : model->parameters()) {
    if (parameter->name != "conv3.conv.weight") continue;
    const auto contiguous = parameter->value.detach().contiguous();
    EXPECT_EQ(std::memcmp(contiguous.const_data_ptr(), file.bytes(*weight).data(), contiguous.nbytes()), 0);
    EXPECT_FALSE(parameter->value.is_contiguous());
  }
}

// Cut and replicated otherwise, a resumed run ends where the whole one did, but for rounding.
TEST(ImageCheckpoint, LoadsOnAnotherMesh) {
  TemporaryFolder folder;
  auto config = small_googlenet(folder / "whole");
  config.train.precision = Precision::fp64;
  config.train.steps = 3;
  config.parallel.pipe = 2;
  const auto whole = run_whole(config, {}, 2);
  fs::create_directories(folder / "part/checkpoints");
  fs::copy(folder / "whole/checkpoints/step-2", folder / "part/checkpoints/step-2", fs::copy_options::recursive);
  config.run_dir = folder / "part";
  config.parallel.pipe = 1;
  const auto resumed = run_whole(config, resume, 3);
  EXPECT_NEAR(resumed.loss / whole.loss, 1, 1e-9);
  EXPECT_NEAR(*resumed.eval_loss / *whole.eval_loss, 1, 1e-9);
}

}  // namespace
}  // namespace trireme
