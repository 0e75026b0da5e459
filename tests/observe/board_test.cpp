// The board of a job: made, opened, refused, swept; faults, stops and last operations.
#include "trireme/observe/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/child.h"
#include "trireme/base/error.h"
#include "trireme/observe/recorder.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class BoardTest : public testing::Test {
 protected:
  BoardTest() : path_(board_path(fmt::format("board-test-{}", getpid()))) {}
  ~BoardTest() override { fs::remove(path_); }

  std::string error_of_open() {
    try {
      Board::open(path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path path_;
};

TEST_F(BoardTest, WhatOneWritesTheOtherReads) {
  const auto made = Board::create(path_, 3);
  EXPECT_FALSE(fs::exists(path_.string() + ".building"));
  const auto opened = Board::open(path_);
  EXPECT_EQ(opened->ranks(), 3);
  EXPECT_EQ(opened->path(), path_);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(opened->slot(i).rank.load(), -1);
    EXPECT_EQ(opened->slot(i).state.load(), RankState::absent);
    EXPECT_EQ(opened->slot(i).step.load(), -1);
    EXPECT_EQ(opened->slot(i).last_operation(), "starting");
  }
  made->slot(2).rank.store(7);
  made->slot(2).compute.write("forward", 1, 4);
  EXPECT_EQ(opened->slot(2).rank.load(), 7);
  EXPECT_EQ(opened->slot(2).last_operation(), "forward 4 (step 1)");
  EXPECT_EQ(opened->slot(1).last_operation(), "starting");
}

TEST_F(BoardTest, AnOpenBoardOutlivesItsName) {
  const auto made = Board::create(path_, 1);
  const auto opened = Board::open(path_);
  fs::remove(path_);
  made->request_stop(2);
  EXPECT_EQ(opened->stop_requested(), 2);
}

TEST_F(BoardTest, RefusesWhatIsNoBoard) {
  EXPECT_THAT(error_of_open(), AllOf(HasSubstr(path_.string()), HasSubstr("No such file or directory")));
  for (const size_t bytes : {size_t{0}, size_t{10}, size_t{100'000}}) {
    std::ofstream(path_, std::ios::trunc) << std::string(bytes, 'x');
    EXPECT_THAT(error_of_open(),
                AllOf(HasSubstr(path_.string()), HasSubstr("is not a board of this program's version")))
        << bytes;
  }
}

TEST_F(BoardTest, RefusesABoardThatWasCutOff) {
  Board::create(path_, 4);
  fs::resize_file(path_, fs::file_size(path_) - sizeof(BoardSlot));
  EXPECT_THAT(error_of_open(), HasSubstr("is not a board"));
}

TEST(BoardInMemory, HasSlotsOfItsOwn) {
  const auto board = Board::in_memory(2);
  EXPECT_EQ(board->ranks(), 2);
  EXPECT_EQ(board->slot(1).last_operation(), "starting");
  EXPECT_NE(&board->slot(0), &board->slot(1));
  EXPECT_TRUE(board->path().empty());
}

TEST(BoardFaults, TheFirstSpeaksForTheJob) {
  const auto board = Board::in_memory(1);
  EXPECT_FALSE(board->faulted());
  EXPECT_EQ(board->fault_message(), "");
  EXPECT_TRUE(board->claim_fault(3, 2, "the cause"));
  EXPECT_FALSE(board->claim_fault(0, 1, "a consequence"));
  EXPECT_TRUE(board->faulted());
  EXPECT_EQ(board->fault_exit_status(), 2);
  EXPECT_EQ(board->fault_message(), "the cause");
}

TEST(BoardFaults, ALongMessageIsCut) {
  const auto board = Board::in_memory(1);
  EXPECT_TRUE(board->claim_fault(0, 1, std::string(5000, 'm')));
  EXPECT_EQ(board->fault_message(), std::string(1023, 'm'));
}

TEST(BoardFaults, OfManyAtOnceOneClaims) {
  for (int round = 0; round < 50; ++round) {
    const auto board = Board::in_memory(1);
    std::atomic<int> claimed{0};
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
          if (board->claim_fault(i, 10 + i, fmt::format("rank {}", i))) ++claimed;
        });
      }
    }
    EXPECT_EQ(claimed.load(), 1);
    EXPECT_EQ(board->fault_message(), fmt::format("rank {}", board->fault_exit_status() - 10));
  }
}

TEST(BoardStop, IsSeenByAll) {
  const auto board = Board::in_memory(1);
  EXPECT_EQ(board->stop_requested(), 0);
  board->request_stop(SIGTERM);
  EXPECT_EQ(board->stop_requested(), SIGTERM);
}

TEST(LastOperation, SaysComputeAndMessage) {
  BoardSlot slot;
  Recorder recorder(&slot);
  EXPECT_EQ(slot.last_operation(), "starting");
  recorder.communicate("bucket 0", 12);
  EXPECT_EQ(slot.last_operation(), "bucket 0 12");
  recorder.compute("load the data");
  EXPECT_EQ(slot.last_operation(), "load the data; last message: bucket 0 12");
  recorder.set_step(17);
  recorder.compute("backward", 3);
  recorder.communicate("gradient norm", 13);
  EXPECT_EQ(slot.last_operation(), "backward 3 (step 17); last message: gradient norm 13 (step 17)");
  EXPECT_EQ(slot.step.load(), 17);
  EXPECT_EQ(slot.progress.load(), 4U);
}

TEST(LastOperation, ALongNameIsCutAndAShorterOneReplacesIt) {
  BoardSlot slot;
  slot.compute.write(std::string(100, 'n').c_str(), -1, -1);
  EXPECT_EQ(slot.last_operation(), std::string(43, 'n'));
  slot.compute.write("short", -1, -1);
  EXPECT_EQ(slot.last_operation(), "short");
}

TEST(LastOperation, ARecorderWithoutABoardWritesNothing) {
  Recorder recorder;
  recorder.compute("forward", 1);
  recorder.communicate("bucket", 1);
  recorder.set_step(3);
  EXPECT_EQ(recorder.step(), 3);
}

const Role nothing("nothing", [] { return 0; });

TEST(SweepBoards, RemovesOnlyBoardsOfDeadOwners) {
  pid_t gone = 0;
  {
    Child child("nothing");
    gone = child.pid();
    ASSERT_EQ(child.wait(), 0);
  }
  const auto dead = board_path(fmt::format("pid{}", gone));
  const auto dead_segment = board_path(fmt::format("pid{}.1.0", gone));
  const auto mine = board_path(fmt::format("pid{}", getpid()));
  const auto named = board_path(fmt::format("slurm-{}-0", gone));
  const auto odd = board_path("pid-of-nobody");
  const std::vector<fs::path> kept{mine, named, odd};
  Board::create(dead, 1);
  std::ofstream(dead_segment) << "x";
  for (const auto& path : kept) Board::create(path, 1);
  sweep_boards();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(dead_segment)) << "what the job's transport left goes with its board";
  for (const auto& path : kept) {
    EXPECT_TRUE(fs::exists(path)) << path;
    fs::remove(path);
  }
}

}  // namespace
}  // namespace trireme
