// Starting from another model's weights, adapters in checkpoints, and conversion, without any program but ours.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/data/temporary.h"
#include "tests/train/small.h"
#include "trireme/base/tensor_files.h"
#include "trireme/train/checkpoint.h"
#include "trireme/train/convert.h"
#include "trireme/train/generate.h"
#include "trireme/train/weights.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using Layout = SourceModel::Layout;

std::map<std::string, at::Tensor> tensors_in(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> tensors;
  const TensorFiles files(open_source_model(folder).files);
  for (const auto& found : files.all()) tensors[found.info->name] = tensor_of(found);
  return tensors;
}

void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

class Weights : public testing::Test {
 protected:
  // A base that was trained a little, so that no value is what the seed gives.
  RunConfig trained(const RunConfig& small, const std::string& name) {
    auto config = small;
    config.train.steps = 3;
    config.train.precision = Precision::fp32;
    config.run_dir = folder_ / name;
    run_whole(config);
    return config;
  }

  // A run of few steps that starts from the run `name`.
  RunConfig from(const RunConfig& base, const std::string& name) {
    auto config = base;
    config.model.from = base.run_dir;
    config.run_dir = folder_ / name;
    return config;
  }

  TemporaryFolder folder_;
};

TEST_F(Weights, TrainingStartsFromThem) {
  const auto base = trained(small_llama(), "base");
  auto config = from(base, "next");
  config.optimizer.lr = 1e-30;  // so small that no value moves
  config.optimizer.weight_decay = 0;
  config.train.seed = 99;
  run_whole(config, {}, 2);
  expect_equal(tensors_in(config.run_dir), tensors_in(base.run_dir));
  // On stages too, each of which reads its own part.
  config.run_dir = folder_ / "staged";
  config.parallel.pipe = 3;
  config.train.microbatch = 2;
  run_whole(config, {}, 3);
  EXPECT_EQ(open_source_model(config.run_dir).files.size(), 3u);
  expect_equal(tensors_in(config.run_dir), tensors_in(base.run_dir));
}

TEST_F(Weights, OfAnotherShapeAreRefused) {
  auto config = from(trained(small_llama(), "base"), "next");
  config.model.hidden = 32;
  const auto complaint = refusal_of([&] { run_whole(config); });
  EXPECT_THAT(complaint, HasSubstr("model.layers.0.mlp.gate_proj.weight has shape [24, 16] in "));
  EXPECT_THAT(complaint, HasSubstr("step-3/model.safetensors and [32, 16] in this model"));
  config.model.hidden = 24;
  config.model.layers = 1;
  EXPECT_THAT(refusal_of([&] { run_whole(config); }), HasSubstr("which this model has not"));
  config.model.layers = 3;
  EXPECT_THAT(refusal_of([&] { run_whole(config); }), HasSubstr("has no model.layers.2.input_layernorm.weight"));
}

// A flipped bit is found by whoever reads the weights: a training that starts from them, on every rank, a conversion,
// and what asks a model of adapters for its base.
TEST_F(Weights, OfADamagedCheckpointAreRefused) {
  const auto base = trained(small_llama(), "base");
  auto adapters = from(base, "adapters");
  adapters.model.lora_rank = 2;
  run_whole(adapters);
  const auto file = list_checkpoints(base.run_dir).front() / "model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-3, std::ios::end);
  const auto byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(-3, std::ios::end);
  stream.put(byte);
  stream.close();
  const auto damaged = HasSubstr(file.string() + " is damaged: the checksum of its ");
  EXPECT_THAT(refusal_of([&] { run_whole(from(base, "next")); }), damaged);
  EXPECT_THAT(refusal_of([&] { run_whole(from(base, "next"), {}, 2); }), damaged);
  EXPECT_THAT(refusal_of([&] { convert(base.run_dir, folder_ / "converted", {}); }), damaged);
  EXPECT_THAT(refusal_of([&] { convert(adapters.run_dir, folder_ / "converted", {}); }), damaged);
  EXPECT_THAT(refusal_of([&] { generate(base.run_dir, {.tokens = 1}); }), damaged);
  EXPECT_THAT(refusal_of([&] { generate(adapters.run_dir, {.tokens = 1}); }), damaged);
}

TEST_F(Weights, ShorterSequencesTakeTheFirstPositions) {
  const auto base = trained(small_gpt(), "base");
  auto config = from(base, "next");
  config.model.context = 5;
  config.optimizer.lr = 1e-30;
  config.optimizer.weight_decay = 0;
  run_whole(config);
  const auto mine = tensors_in(config.run_dir), theirs = tensors_in(base.run_dir);
  EXPECT_TRUE(at::equal(mine.at("wpe.weight"), theirs.at("wpe.weight").narrow(0, 0, 5)));
}

TEST_F(Weights, ACheckpointOfAdaptersHoldsThemAloneAndResumes) {
  for (const auto& small : {small_gpt(), small_llama()}) {
    const auto base = trained(small, fmt::format("base-{}", static_cast<int>(small.model.kind)));
    auto config = from(base, fmt::format("lora-{}", static_cast<int>(small.model.kind)));
    config.model.lora_rank = 2;
    config.train.steps = 6;
    config.checkpoint.every = 3;
    run_whole(config);
    const auto adapters = tensors_in(config.run_dir);
    for (const auto& [name, value] : adapters) EXPECT_THAT(name, HasSubstr(".lora_"));
    EXPECT_EQ(adapters.size(), small.model.kind == ModelKind::gpt ? 8u : 16u);
    // Three steps and three more are six.
    auto again = config;
    again.run_dir = config.run_dir + "-again";
    again.train.steps = 3;
    again.optimizer.schedule = config.optimizer.schedule = LrSchedule::constant;
    auto whole = config;
    whole.run_dir = config.run_dir + "-whole";
    run_whole(whole);
    run_whole(again);
    again.train.steps = 6;
    run_whole(again, {.resume = true});
    expect_equal(tensors_in(again.run_dir), tensors_in(whole.run_dir));
  }
}

// A checkpoint of a model that is frozen in part holds all of it, and state of the rest alone.
TEST_F(Weights, APartlyFrozenRunResumes) {
  const auto base = trained(small_gpt(), "base");
  auto config = from(base, "whole");
  config.model.freeze = "w*,h.0.*";
  config.optimizer.schedule = LrSchedule::constant;
  config.train.steps = 4;
  run_whole(config);
  auto again = config;
  again.run_dir = folder_ / "again";
  again.train.steps = 2;
  run_whole(again);
  again.train.steps = 4;
  run_whole(again, {.resume = true}, 2);
  const auto whole = tensors_in(config.run_dir), resumed = tensors_in(again.run_dir), before = tensors_in(base.run_dir);
  ASSERT_EQ(whole.size(), before.size());
  for (const auto& [name, value] : whole) {
    const bool frozen = name[0] == 'w' || name.rfind("h.0.", 0) == 0;
    EXPECT_EQ(at::equal(value, before.at(name)), frozen) << name;
    EXPECT_TRUE(!frozen || at::equal(value, resumed.at(name))) << name;
    EXPECT_LE((value - resumed.at(name)).abs().max().item<double>(), 1e-5) << name;
  }
  const TensorFiles state(open_checkpoint(list_checkpoints(config.run_dir).front()).optimizer_files);
  EXPECT_TRUE(state.find("h.1.ln_1.weight.exp_avg"));
  EXPECT_FALSE(state.find("h.0.ln_1.weight.exp_avg"));
}

TEST_F(Weights, MergedAdaptersSpeakLikeTheRun) {
  for (const auto& small : {small_gpt(), small_llama()}) {
    const auto name = std::to_string(static_cast<int>(small.model.kind));
    const auto base = trained(small, "base-" + name);
    auto config = from(base, "lora-" + name);
    config.model.lora_rank = 2;
    config.optimizer.lr = 0.05;
    config.train.steps = 10;
    run_whole(config);
    const auto merged = convert(config.run_dir, folder_ / ("merged-" + name), {.layout = Layout::trireme});
    EXPECT_EQ(merged.merged, small.model.kind == ModelKind::gpt ? 4 : 8);
    const auto logits = [&](const std::filesystem::path& from) {
      GenerateOptions options{.ids = {1, 2, 3, 4, 5}, .tokens = 1, .logits = folder_ / "logits"};
      generate(from, options);
      const TensorFiles file({folder_ / "logits"});
      return tensor_of(file.find("logits"));
    };
    const auto speaks = logits(config.run_dir);
    EXPECT_LE((speaks - logits(merged.to)).abs().max().item<double>(), 1e-5);
    EXPECT_GT((speaks - logits(base.run_dir)).abs().max().item<double>(), 1e-3);
  }
}

TEST_F(Weights, ThereAndBackIsTheSame) {
  for (const auto& small : {small_gpt(), small_llama()}) {
    const auto name = std::to_string(static_cast<int>(small.model.kind));
    auto config = small;
    config.train.steps = 2;
    config.parallel.pipe = 2;
    config.train.microbatch = 2;
    config.train.precision = Precision::fp32;
    config.run_dir = folder_ / ("run-" + name);
    run_whole(config, {}, 2);
    const auto there = convert(config.run_dir, folder_ / ("there-" + name), {.max_shard_mb = 0.004});
    EXPECT_GT(there.files.size(), 2u);
    EXPECT_EQ(there.layout, Layout::hugging_face);
    const auto back = convert(there.to, folder_ / ("back-" + name), {});
    EXPECT_EQ(back.layout, Layout::trireme);
    expect_equal(tensors_in(back.to), tensors_in(config.run_dir));
    auto next = config;
    next.parallel = {};
    next.train.steps = 1;
    next.model.from = there.to;
    next.run_dir = folder_ / ("next-" + name);
    run_whole(next);
  }
}

TEST_F(Weights, SettingsComeFromTheSource) {
  const auto base = trained(small_llama(), "base");
  const auto there = convert(base.run_dir, folder_ / "there", {});
  for (const auto& source : {std::filesystem::path(base.run_dir), there.to}) {
    const auto config = load_config({}, {"model.from=" + source.string(), "data.kind=synthetic", "model.context=4"});
    EXPECT_EQ(config.model.kind, ModelKind::llama);
    EXPECT_EQ(config.model.width, 16);
    EXPECT_EQ(config.model.kv_heads, 2);
    EXPECT_EQ(config.model.hidden, 24);
    EXPECT_EQ(config.model.vocab, 20);
    EXPECT_EQ(config.model.context, 4);
    const auto complaint = refusal_of([&] { load_config({}, {"model.from=" + source.string(), "model.layers=5"}); });
    EXPECT_THAT(complaint, HasSubstr("command line: model.layers = 5 must be 2, as "));
    EXPECT_THAT(complaint, HasSubstr("says, or left out, with model.from = "));
    EXPECT_THAT(refusal_of([&] { load_config({}, {"model.from=" + source.string(), "model.context=9"}); }),
                HasSubstr("model.context = 9 must be 8"));
  }
  const auto newer = folder_ / "newer";
  std::filesystem::create_directories(newer);
  std::ofstream(newer / "manifest.json") << R"({"format": "trireme-checkpoint", "version": 2})";
  EXPECT_THAT(refusal_of([&] { load_config({}, {"model.from=" + newer.string()}); }),
              HasSubstr("newer was made by a newer Trireme: it has version 2, this program reads up to 1"));
  EXPECT_THAT(refusal_of([&] { load_config({}, {"model.from=nowhere"}); }),
              HasSubstr("model.from: nowhere: there is no such folder"));
}

TEST_F(Weights, AdaptersAreNoBaseAndNeedOne) {
  auto config = from(trained(small_gpt(), "base"), "lora");
  config.model.lora_rank = 2;
  run_whole(config);
  EXPECT_THAT(refusal_of([&] { load_config({}, {"model.from=" + config.run_dir}); }), HasSubstr("holds adapters only"));
  EXPECT_THAT(refusal_of([&] { load_config({}, {"model.lora_rank=2"}); }), HasSubstr("must name a base"));
  std::filesystem::rename(folder_ / "base", folder_ / "moved");
  EXPECT_THAT(refusal_of([&] { convert(config.run_dir, folder_ / "merged", {}); }),
              HasSubstr("there is no such folder"));
}

}  // namespace
}  // namespace trireme
