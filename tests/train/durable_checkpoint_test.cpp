// A checkpoint gets its name when everything in it is on the disk, and not before: seen by the calls that a save makes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary.h"
#include "tests/support/disk_calls.h"
#include "trireme/nn/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/checkpoint.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::UnorderedElementsAre;

TEST(DurableCheckpoint, HasItsNameOnceItIsWholeAndOnTheDisk) {
  TemporaryFolder folder;
  Recorder recorder;
  const auto model = build_model({.kind = ModelKind::mlp, .layers = 1, .width = 4, .inputs = 4, .classes = 2}, 0);
  model->initialize(1);
  ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 4000,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  const auto rule = make_optimizer({});
  for (auto& bucket : store.buckets()) rule->prepare(bucket);
  CheckpointWriter writer(folder / "run", {.keep = 1}, "train: {seed: 1}\n", recorder);

  const DiskCalls recorded;
  writer.save(model->parameters(), store, {.step = 3});
  ASSERT_TRUE(writer.finish(60));
  const auto calls = recorded.all();

  const auto checkpoints = fs::canonical(folder / "run/checkpoints");
  const auto partial = checkpoints / "step-3.partial", whole = checkpoints / "step-3";
  const auto place = [&](const DiskCall& wanted) {
    return static_cast<size_t>(std::find(calls.begin(), calls.end(), wanted) - calls.begin());
  };
  // The writer knows the folder by the name that it was given, which may lead through links.
  const auto named = std::find_if(calls.begin(), calls.end(), [](const auto& call) {
    return call.kind == DiskCall::Kind::rename && call.to.filename() == "step-3";
  });
  ASSERT_NE(named, calls.end()) << "the checkpoint never got its name";
  const auto at = static_cast<size_t>(named - calls.begin());
  EXPECT_EQ(named->path.filename(), "step-3.partial");
  EXPECT_THAT(named->names, UnorderedElementsAre("manifest.json", "model.safetensors", "optimizer.safetensors"))
      << "what was in it when it got its name";

  for (const auto* file : {"model.safetensors", "optimizer.safetensors"}) {
    const auto synced_at = place(synced(partial / file));
    ASSERT_LT(synced_at, at) << file << " was not synced before";
    EXPECT_EQ(calls[synced_at].bytes, fs::file_size(whole / file))
        << file << " was synced before all of it was written";
  }
  size_t manifest_at = 0;
  for (; manifest_at < at && calls[manifest_at].to.filename() != "manifest.json"; ++manifest_at) {
  }
  ASSERT_LT(manifest_at, at);
  const auto temporary = fs::canonical(checkpoints) / "step-3.partial" / calls[manifest_at].path.filename();
  EXPECT_LT(place(synced(temporary)), manifest_at) << "the manifest was not synced before";
  // The folder's entries after the last of them, and the folder above after the new name.
  const auto synced_within = [&](const fs::path& path, size_t begin, size_t end) {
    return std::find(calls.begin() + static_cast<std::ptrdiff_t>(begin),
                     calls.begin() + static_cast<std::ptrdiff_t>(end),
                     synced(path)) != calls.begin() + static_cast<std::ptrdiff_t>(end);
  };
  EXPECT_TRUE(synced_within(partial, manifest_at + 1, at)) << "the folder was not synced after its last entry";
  EXPECT_TRUE(synced_within(checkpoints, at + 1, calls.size())) << "the folder above was not synced after the new name";
}

}  // namespace
}  // namespace trireme
