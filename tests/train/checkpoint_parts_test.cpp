#include "trireme/train/checkpoint_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/data/temporary.h"
#include "trireme/nn/model.h"
#include "trireme/observe/board.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/checkpoint.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointParts : public testing::Test {
 protected:
  CheckpointParts() {
    fs::create_directories(partial);
    wait.ranks = {0, 6};
    wait.patience_s = 3600;
    wait.hurried_s = 3600;
    wait.hurried = [] { return false; };
    wait.given_up = [] { return false; };
    wait.progressed = [this] { ++progress; };
  }

  // Why the wait for the second writer's part ended.
  std::string failure() {
    note_part(partial, 0, {});
    try {
      gather_parts(partial, wait);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder;
  const fs::path partial = folder / "step-7.partial";
  PartWait wait;
  std::atomic<int> progress{0};
};

TEST_F(CheckpointParts, AreGatheredAndTheirNotesTakenAway) {
  note_part(partial, 1, {{"b", {{"bytes", 2}}}});
  note_part(partial, 0, {{"a", {{"bytes", 1}}}});
  EXPECT_EQ(gather_parts(partial, wait), (ordered_json{{"a", {{"bytes", 1}}}, {"b", {{"bytes", 2}}}}));
  EXPECT_TRUE(fs::is_empty(partial));
}

// The part of a rank that writes nothing at all: another run took it, or that rank sees another folder.
TEST_F(CheckpointParts, AWaitHasAnEndAndNamesTheRank) {
  wait.patience_s = 0.3;
  EXPECT_THAT(failure(), AllOf(HasSubstr("rank 6 has given no sign of life in " + partial.string()),
                               HasSubstr("part-1.json is missing there")));
}

TEST_F(CheckpointParts, AWaitIsShorterOnceTheRunIsAskedToStop) {
  std::atomic<bool> stop{false};
  wait.hurried = [&] { return stop.load(); };
  wait.hurried_s = 0.3;
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    stop = true;
  });
  EXPECT_THAT(failure(), AllOf(HasSubstr("rank 6 has given no sign of life"), HasSubstr("the run was asked to stop")));
  user.join();
}

TEST_F(CheckpointParts, AFailedPartIsNotWaitedFor) {
  note_failed_part(partial, 1);
  EXPECT_EQ(failure(), "rank 6 could not save its part");
}

// Only what others write is progress, and it is worth waiting for.
TEST_F(CheckpointParts, GrowthIsProgressAndWaitingIsNot) {
  wait.patience_s = 1;
  std::thread other([&] {
    std::ofstream file(partial / "model-00002-of-00002.safetensors");
    for (int i = 0; i < 6; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      file << "more" << std::flush;
    }
    note_part(partial, 1, {});
  });
  EXPECT_EQ(failure(), "");  // after nearly two seconds, but never one without a byte
  other.join();
  EXPECT_GE(progress, 3);

  progress = 0;
  fs::remove_all(partial);
  fs::create_directories(partial);
  wait.patience_s = 1.2;
  EXPECT_NE(failure(), "");
  EXPECT_LE(progress, 1) << "the folder never changed but for our own note";
}

// A slow disk: what a writer waits for shows in the folder only when it is there.
TEST_F(CheckpointParts, ASignOfLifeIsWorthWaitingFor) {
  wait.patience_s = wait.hurried_s = 2;
  wait.hurried = [] { return true; };
  std::thread other([&] {
    {
      const PartPulse pulse(partial, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(4500));  // in fsync
    }
    note_part(partial, 1, {{"b", {{"bytes", 2}}}});
  });
  EXPECT_EQ(failure(), "");
  other.join();
  EXPECT_TRUE(fs::is_empty(partial)) << "signs of life are no part of a checkpoint";
}

// The writer itself gives the signs, as long as it is at work and no longer.
TEST_F(CheckpointParts, AWriterAtWorkGivesSignsOfLife) {
  Recorder recorder;
  const auto model = build_model({.kind = ModelKind::mlp, .layers = 1, .width = 64, .inputs = 64, .classes = 2}, 0);
  model->initialize(1);
  ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 4000,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  CheckpointPart part;
  part.stage = part.writer = 1;
  part.stages = 2;
  part.writer_ranks = {0, 6};
  CheckpointWriter writer(folder / "run", {.keep = 1, .rate_mb = 0.008}, "", recorder, part);  // some two seconds
  writer.save(model->parameters(), store, {.step = 7});
  const auto place = folder / "run/checkpoints/step-7.partial";
  EXPECT_FALSE(writer.finish(1.3));
  EXPECT_TRUE(fs::exists(place / "part-1.alive"));
  EXPECT_TRUE(writer.finish(60));
  EXPECT_FALSE(fs::exists(place / "part-1.alive"));
  EXPECT_TRUE(fs::exists(place / "part-1.json"));
}

// A rank whose saving thread waits for another is not at work: its watchdog must see that.
TEST_F(CheckpointParts, AWaitingSaveTellsTheWatchdogNothing) {
  BoardSlot slot;
  Recorder recorder(&slot);
  const auto model = build_model({.kind = ModelKind::mlp, .layers = 1, .width = 4, .inputs = 4, .classes = 2}, 0);
  model->initialize(1);
  ParameterStore store(model->parameters(), Precision::fp32, at::kCPU, 4000,
                       [](int64_t bytes, int) { return at::zeros({bytes}, at::kByte); });
  std::atomic<bool> stop{false};
  CheckpointPart part;
  part.writer_ranks = {0, 6};
  part.stop_asked = [&] { return stop.load(); };
  testing::internal::CaptureStderr();
  {
    CheckpointWriter writer(folder / "run", {.keep = 1}, "", recorder, part);
    writer.save(model->parameters(), store, {.step = 7});
    EXPECT_FALSE(writer.finish(1.5));  // its own part is written by then
    const auto heard = slot.alive.load();
    EXPECT_FALSE(writer.finish(1.5));
    EXPECT_EQ(slot.alive.load(), heard);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("the checkpoint of step 7 was not saved: the run ended before rank 6 had saved its part"));
  EXPECT_TRUE(fs::is_empty(folder / "run/checkpoints"));
}

}  // namespace
}  // namespace trireme
