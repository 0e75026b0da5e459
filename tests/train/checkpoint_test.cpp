#include "trireme/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/close.h"
#include "tests/data/temporary.h"
#include "trireme/nn/model.h"
#include "trireme/optim/optimizer.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A model with its state, every element of it different.
struct Trained {
  std::unique_ptr<Model> model;
  std::unique_ptr<ParameterStore> store;

  explicit Trained(const ModelConfig& config, const OptimizerConfig& optimizer = {},
                   Precision precision = Precision::fp32, double bucket_bytes = 4000) {
    model = build_model(config, 20);
    model->initialize(1);
    store = std::make_unique<ParameterStore>(model->parameters(), precision, at::kCPU, bucket_bytes,
                                             [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
    const auto rule = make_optimizer(optimizer);
    for (auto& bucket : store->buckets()) rule->prepare(bucket);
  }

  // All buffers of the state as seen by the parameters, by name: the padding between them is nobody's.
  std::map<std::string, at::Tensor> pieces() const {
    std::map<std::string, at::Tensor> found;
    for (const auto& bucket : store->buckets()) {
      for (const auto& stored : bucket.parameters) {
        found[stored.parameter->name] = ParameterStore::piece(bucket.master, stored);
        for (const auto& [name, buffer] : bucket.state)
          found[stored.parameter->name + "." + name] = ParameterStore::piece(buffer, stored);
      }
    }
    return found;
  }

  void fill(int64_t salt) {
    for (auto& [name, piece] : pieces()) piece.copy_(numbers(piece.sizes(), ++salt));
    for (auto& bucket : store->buckets()) ParameterStore::publish(bucket);
  }

  void save(CheckpointWriter& writer, int64_t step) {
    writer.save(model->parameters(), *store, {.step = step, .updates = step - 1, .skipped = 1, .skipped_in_a_row = 0});
    EXPECT_TRUE(writer.finish(60));
  }
  void load(const CheckpointInfo& info, bool with_optimizer = true) {
    load_checkpoint(info, model->parameters(), *store, with_optimizer);
  }
};

ModelConfig small_gpt() { return {.kind = ModelKind::gpt, .layers = 1, .width = 12, .heads = 2, .context = 6}; }

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Checkpoint : public testing::Test {
 protected:
  // Saves a checkpoint of each of these steps, and gives the folder of the last.
  fs::path save(Trained& trained, std::vector<int64_t> steps, int64_t keep = 10, const std::string& run = "run") {
    CheckpointWriter writer(folder / run, {.keep = keep}, "train: {seed: 1}\n", recorder);
    for (const int64_t step : steps) trained.save(writer, step);
    EXPECT_TRUE(writer.last().has_value());
    return writer.last().value_or("");
  }
  fs::path checkpoints(const std::string& run = "run") const { return folder / run / "checkpoints"; }

  TemporaryFolder folder;
  Recorder recorder;
};

TEST_F(Checkpoint, GivesBackWhatWasSaved) {
  for (const auto& optimizer :
       {OptimizerConfig{.kind = OptimizerKind::adamw}, OptimizerConfig{.kind = OptimizerKind::sgd},
        OptimizerConfig{.kind = OptimizerKind::sgd, .momentum = 0}}) {
    for (const auto precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
      Trained saved(small_gpt(), optimizer, precision), loaded(small_gpt(), optimizer, precision, 1e9);
      saved.fill(1);
      const auto info = open_checkpoint(save(saved, {17}));
      EXPECT_EQ(info.step, 17);
      EXPECT_EQ(info.progression.step, 17);
      EXPECT_EQ(info.progression.updates, 16);
      EXPECT_EQ(info.progression.skipped, 1);
      EXPECT_EQ(info.config, "train: {seed: 1}\n");
      loaded.load(info);
      const auto expected = saved.pieces(), found = loaded.pieces();
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [name, piece] : expected) EXPECT_TRUE(at::equal(found.at(name), piece)) << name;
      for (size_t i = 0; i < saved.model->parameters().size(); ++i) {  // the values follow the masters
        EXPECT_TRUE(at::equal(saved.model->parameters()[i]->value, loaded.model->parameters()[i]->value));
      }
    }
  }
}

TEST_F(Checkpoint, LoadsAModelWithoutItsOptimizer) {
  Trained saved(small_gpt()), loaded(small_gpt(), {.kind = OptimizerKind::sgd});
  saved.fill(1);
  const auto info = open_checkpoint(save(saved, {1}));
  loaded.load(info, /*with_optimizer=*/false);
  EXPECT_TRUE(at::equal(loaded.pieces().at("wte.weight"), saved.pieces().at("wte.weight")));
  EXPECT_THAT(refusal_of([&] { loaded.load(info); }),
              HasSubstr("is of another model or optimizer: it has no wte.weight.momentum_buffer"));
}

// The values of one precision start a run of another.
TEST_F(Checkpoint, LoadsIntoAnotherPrecision) {
  Trained saved(small_gpt(), {}, Precision::fp32), loaded(small_gpt(), {}, Precision::fp64);
  saved.fill(1);
  loaded.load(open_checkpoint(save(saved, {1})));
  EXPECT_TRUE(at::equal(loaded.pieces().at("wte.weight"), saved.pieces().at("wte.weight").to(at::kDouble)));
}

TEST_F(Checkpoint, HasBytesThatDependOnTheValuesAlone) {
  Trained small(small_gpt(), {}, Precision::fp32, 100), large(small_gpt(), {}, Precision::fp32, 1e9),
      resumed(small_gpt());
  small.fill(1);
  large.fill(1);
  const auto one = save(small, {5}, 10, "one"), two = save(large, {5}, 10, "two");
  resumed.load(open_checkpoint(one));
  const auto three = save(resumed, {5}, 10, "three"), again = save(small, {5}, 10, "one");
  EXPECT_EQ(again, one);
  for (const auto* file : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const auto bytes = bytes_of_file(one / file);
    EXPECT_FALSE(bytes.empty());
    EXPECT_TRUE(bytes_of_file(two / file) == bytes) << file;
    EXPECT_TRUE(bytes_of_file(three / file) == bytes) << file;
  }
}

TEST_F(Checkpoint, CopiesTheStateOfItsMoment) {
  Trained trained(small_gpt());
  trained.fill(1);
  const auto expected = trained.pieces().at("wte.weight").clone();
  {
    CheckpointWriter writer(folder / "run", {.keep = 1, .rate_mb = 0.05}, "", recorder);  // slow enough to be overtaken
    writer.save(trained.model->parameters(), *trained.store, {.step = 1});
    trained.fill(2);
    EXPECT_FALSE(writer.finish(0.001));
  }  // what was begun is finished
  Trained loaded(small_gpt());
  loaded.load(newest_checkpoint(folder / "run"));
  EXPECT_TRUE(at::equal(loaded.pieces().at("wte.weight"), expected));
}

TEST_F(Checkpoint, KeepsTheNewest) {
  Trained trained(small_gpt());
  save(trained, {1, 2, 9, 10, 11}, 3);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("step-10", "step-11", "step-9"));
  const auto listed = list_checkpoints(folder / "run");
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0].filename(), "step-11");  // by number, not by letter
  EXPECT_EQ(listed[2].filename(), "step-9");
  save(trained, {12}, 1);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("step-12"));
}

// A run that goes on from an older step must not throw away what it writes for what it has left behind.
TEST_F(Checkpoint, KeepsWhatItJustWroteBesideLaterOnes) {
  Trained trained(small_gpt());
  save(trained, {10, 20}, 2);
  const auto written = save(trained, {15}, 1);
  EXPECT_TRUE(fs::exists(written / "manifest.json"));
}

// Resumed from step 10, the run leaves the line that led to 15 and 20: they stay on the disk, but are not resumed from.
TEST_F(Checkpoint, SetsAsideWhatComesAfterTheStepItGoesOnFrom) {
  Trained trained(small_gpt());
  save(trained, {5, 10, 15, 20}, 9);
  set_aside_checkpoints_after(folder / "run", 10);
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("abandoned-step-15", "abandoned-step-20", "step-10", "step-5"));
  EXPECT_EQ(newest_checkpoint(folder / "run").step, 10);
  const auto aside = open_checkpoint(checkpoints() / "abandoned-step-15");
  EXPECT_EQ(aside.step, 15);
  save(trained, {15}, 9);
  set_aside_checkpoints_after(folder / "run", 10);  // a second time, over what lies there
  EXPECT_THAT(names_in(checkpoints()), ElementsAre("abandoned-step-15", "abandoned-step-20", "step-10", "step-5"));
}

TEST_F(Checkpoint, IgnoresAndCleansWhatIsHalfWritten) {
  Trained trained(small_gpt());
  save(trained, {3});
  for (const auto* name : {"step-4.partial", "step-3.old.partial"}) {
    fs::create_directories(checkpoints() / name);
    write_file(checkpoints() / name / "model.safetensors", "half");
  }
  fs::create_directories(checkpoints() / "step-x");
  fs::create_directories(checkpoints() / "step-");
  fs::create_directories(checkpoints() / "step-99999999999999999999999");  // no number of a step
  EXPECT_EQ(list_checkpoints(folder / "run").size(), 1u);
  EXPECT_EQ(newest_checkpoint(folder / "run").step, 3);
  save(trained, {5});
  EXPECT_THAT(names_in(checkpoints()),
              ElementsAre("step-", "step-3", "step-5", "step-99999999999999999999999", "step-x"));
}

TEST_F(Checkpoint, RefusesARunWithoutAny) {
  EXPECT_THAT(list_checkpoints(folder / "nowhere"), IsEmpty());
  EXPECT_EQ(refusal_of([&] { newest_checkpoint(folder / "nowhere"); }),
            (folder / "nowhere").string() + " holds no checkpoint");
}

TEST_F(Checkpoint, RefusesEachKindOfDamage) {
  Trained trained(small_gpt());
  const auto damaged = [&](const std::function<void(const fs::path&)>& harm) {
    fs::remove_all(folder / "run");
    const auto path = save(trained, {1});
    harm(path);
    return refusal_of([&] { open_checkpoint(path); });
  };
  const auto manifest = [](const std::string& text) {
    return [=](const fs::path& path) { write_file(path / "manifest.json", text); };
  };
  EXPECT_THAT(damaged([](const fs::path& path) { fs::remove(path / "manifest.json"); }),
              HasSubstr("is no checkpoint: it has no manifest.json"));
  EXPECT_THAT(damaged([](const fs::path& path) { fs::remove(path / "optimizer.safetensors"); }),
              HasSubstr("optimizer.safetensors is missing from the checkpoint"));
  EXPECT_THAT(damaged([](const fs::path& path) { fs::resize_file(path / "model.safetensors", 100); }),
              HasSubstr("has 100 bytes where "));
  EXPECT_THAT(
      damaged([](const fs::path& path) {
        auto bytes = bytes_of_file(path / "model.safetensors");
        bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
        write_file(path / "model.safetensors", bytes);
      }),
      AllOf(HasSubstr("model.safetensors is damaged: the checksum of its "), HasSubstr("use another checkpoint")));
  const auto foreign = HasSubstr("manifest.json is damaged, or not a checkpoint of this program");
  EXPECT_THAT(damaged(manifest("")), foreign);
  EXPECT_THAT(damaged(manifest("{\"format\": \"trireme-check")), foreign);
  EXPECT_THAT(damaged(manifest("[1, 2]")), foreign);
  EXPECT_THAT(damaged(manifest("{\"format\": \"somebody-else\", \"version\": 1}")), foreign);
  EXPECT_THAT(damaged(manifest("{\"format\": 7}")), foreign);
  EXPECT_THAT(damaged(manifest("{\"format\": \"trireme-checkpoint\", \"version\": 2}")),
              HasSubstr("was made by a newer Trireme: it has version 2, this program reads up to 1"));
  EXPECT_THAT(damaged(manifest("{\"format\": \"trireme-checkpoint\", \"version\": \"one\"}")),
              HasSubstr("manifest.json is damaged"));
  EXPECT_THAT(damaged(manifest("{\"format\": \"trireme-checkpoint\", \"version\": 1}")),
              HasSubstr("manifest.json: step is missing: the checkpoint is damaged"));
}

// Values that no writer writes: each is refused with its key.
TEST_F(Checkpoint, RefusesAManifestWithImpossibleValues) {
  Trained trained(small_gpt());
  const auto path = save(trained, {1});
  const auto whole = nlohmann::ordered_json::parse(bytes_of_file(path / "manifest.json"));
  const auto with = [&](const std::string& pointer, const nlohmann::ordered_json& value) {
    auto changed = whole;
    changed[nlohmann::ordered_json::json_pointer(pointer)] = value;
    write_file(path / "manifest.json", changed.dump());
    return refusal_of([&] { open_checkpoint(path); });
  };
  for (const char* key : {"step", "updates", "skipped", "skipped_in_a_row"}) {
    const auto pointer = fmt::format("/{}", key);
    for (const nlohmann::ordered_json& value :
         {nlohmann::ordered_json(-5), nlohmann::ordered_json(1.5), nlohmann::ordered_json("1"),
          nlohmann::ordered_json(nullptr), nlohmann::ordered_json(1e300), nlohmann::ordered_json(1ULL << 63)}) {
      EXPECT_EQ(with(pointer, value), fmt::format("{}: {} = {} must be a whole number from 0 to 1000000000000000: the "
                                                  "checkpoint is damaged, use another one",
                                                  (path / "manifest.json").string(), key, value.dump()));
    }
    auto without = whole;
    without.erase(key);
    write_file(path / "manifest.json", without.dump());
    EXPECT_THAT(refusal_of([&] { open_checkpoint(path); }), HasSubstr(fmt::format(": {} is missing: ", key)));
  }
  EXPECT_THAT(with("/config", 7), HasSubstr("config must be text"));
  EXPECT_THAT(with("/files", nlohmann::ordered_json::object()), HasSubstr("files must name the files"));
  EXPECT_THAT(with("/files/model.safetensors/bytes", -1), HasSubstr("files: model.safetensors must be"));
  EXPECT_THAT(with("/files/model.safetensors/xxh3", 1), HasSubstr("files: model.safetensors must be"));
  EXPECT_THAT(with("/files/..~1..~1model", whole["files"]["model.safetensors"]),
              HasSubstr("files: ../../model must be"));
  EXPECT_THAT(with("/codec", 1), HasSubstr("codec must be text"));
  EXPECT_THAT(with("/step", 2), HasSubstr("manifest.json: it is not as it was written"));
  write_file(path / "manifest.json", whole.dump());
  EXPECT_EQ(open_checkpoint(path).step, 1);
  auto earlier = whole;  // by a program that kept no checksum of it
  earlier.erase("xxh3");
  write_file(path / "manifest.json", earlier.dump());
  EXPECT_EQ(open_checkpoint(path).step, 1);
}

TEST_F(Checkpoint, KnowsTheCodecThatWasChosen) {
  Trained trained(small_gpt());
  EXPECT_EQ(open_checkpoint(save(trained, {1})).codec, "");
  CheckpointWriter writer(folder / "chosen", {}, "", recorder, {.codec = "int8"});
  trained.save(writer, 2);
  EXPECT_EQ(open_checkpoint(*writer.last()).codec, "int8");
}

// Another run may have begun under the name since.
TEST_F(Checkpoint, IsNotWrittenWhereTheFolderWasMovedAway) {
  Trained trained(small_gpt());
  CheckpointWriter writer(folder / "run", {}, "", recorder);
  trained.save(writer, 1);
  fs::rename(folder / "run", folder / "moved");
  trained.save(writer, 2);
  EXPECT_THAT(writer.failure().value_or(""), HasSubstr("checkpoints was moved or removed"));
  fs::create_directories(checkpoints());
  trained.save(writer, 3);
  EXPECT_THAT(writer.failure().value_or(""), HasSubstr("checkpoints was moved or removed"));
  EXPECT_THAT(names_in(checkpoints()), IsEmpty());
  EXPECT_THAT(names_in(folder / "moved" / "checkpoints"), ElementsAre("step-1"));
}

TEST_F(Checkpoint, RefusesAnotherModel) {
  Trained trained(small_gpt());
  const auto info = open_checkpoint(save(trained, {1}));
  auto config = small_gpt();
  config.layers = 2;
  EXPECT_THAT(refusal_of([&] { Trained(config).load(info); }),
              HasSubstr("is of another model: it has 16 parameters, this one 28"));
  config = small_gpt();
  config.width = 16;
  EXPECT_THAT(refusal_of([&] { Trained(config).load(info); }),
              HasSubstr("is of another model: wte.weight has shape [20, 12] there and [20, 16] here"));
  // As many parameters under other names.
  EXPECT_THAT(refusal_of([&] {
                Trained({.kind = ModelKind::mlp, .layers = 7, .width = 4, .inputs = 4, .classes = 2}).load(info);
              }),
              HasSubstr("it has no layers.0.weight"));
}

TEST_F(Checkpoint, OffersTheNewestWholeOne) {
  Trained trained(small_gpt());
  const auto newest = save(trained, {1, 2, 3, 4});
  fs::resize_file(newest / "model.safetensors", 10);
  fs::remove(checkpoints() / "step-3" / "manifest.json");
  EXPECT_THAT(refusal_of([&] { newest_checkpoint(folder / "run"); }),
              AllOf(HasSubstr("the newest checkpoint cannot be used: "), HasSubstr("has 10 bytes where"),
                    HasSubstr("The newest whole one is step-2: give " + (checkpoints() / "step-2").string())));
  fs::remove(checkpoints() / "step-2" / "manifest.json");
  fs::remove(checkpoints() / "step-1" / "manifest.json");
  EXPECT_THAT(refusal_of([&] { newest_checkpoint(folder / "run"); }), HasSubstr("No other one is whole"));
}

// A folder that cannot be written to: the save fails, is told of, and nothing else happens.
TEST_F(Checkpoint, SurvivesASaveThatFails) {
  Trained trained(small_gpt());
  CheckpointWriter writer(folder / "run", {.keep = 2}, "", recorder);
  trained.save(writer, 1);
  fs::rename(checkpoints(), folder / "run" / "moved");
  write_file(checkpoints(), "no folder at all");
  testing::internal::CaptureStderr();
  trained.save(writer, 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: the checkpoint of step 2 was not saved: "),
                    HasSubstr("Earlier checkpoints are untouched")));
  EXPECT_EQ(writer.last()->filename(), "step-1");
  EXPECT_THAT(writer.failure().value_or(""), HasSubstr("checkpoints"));
  fs::remove(checkpoints());
  fs::rename(folder / "run" / "moved", checkpoints());
  trained.save(writer, 3);
  EXPECT_FALSE(writer.failure().has_value());  // of the newest save
  EXPECT_EQ(newest_checkpoint(folder / "run").step, 3);
}

}  // namespace
}  // namespace trireme
