// The board of a job: made, opened, found, refused; faults, stops and last operations.
#include "trireme/observe/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
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

std::string error_of_open(const SegmentName& name) {
  try {
    Board::open(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Board, WhatOneWritesTheOtherReads) {
  const auto made = Board::create(3);
  const auto opened = Board::open(made->name());
  EXPECT_EQ(opened->ranks(), 3);
  EXPECT_EQ(opened->name().text(), made->name().text());
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

TEST(Board, AnOpenOneOutlivesItsName) {
  const auto made = Board::create(1);
  const auto opened = Board::open(made->name());
  opened->hide();  // any of the ranks may
  EXPECT_FALSE(fs::exists(made->name().path()));
  made->request_stop(2);
  EXPECT_EQ(opened->stop_requested(), 2);
}

TEST(Board, TellsWhereTheRanksMeet) {
  const auto made = Board::create(2);
  const auto opened = Board::open(made->name());
  EXPECT_FALSE(opened->announced().is_set());
  const auto meeting = SegmentName::random();
  made->announce(meeting);
  EXPECT_EQ(opened->announced().text(), meeting.text());
}

TEST(Board, RefusesWhatIsNoBoard) {
  EXPECT_THAT(error_of_open(SegmentName::random()), HasSubstr("No such file or directory"));
  for (const size_t bytes : {size_t{10}, size_t{100'000}}) {
    const auto segment = Segment::create(bytes);
    std::memset(segment.data(), 'x', bytes);
    EXPECT_THAT(error_of_open(segment.name()),
                AllOf(HasSubstr(segment.name().path()), HasSubstr("is not a board of this program's version")))
        << bytes;
  }
}

TEST(Board, RefusesOneThatWasCutOff) {
  const auto made = Board::create(4);
  fs::resize_file(made->name().path(), fs::file_size(made->name().path()) - sizeof(BoardSlot));
  EXPECT_THAT(error_of_open(made->name()), HasSubstr("is not a board"));
}

// Every number that opening or reading a board goes by, wrong in turn: an error or a number within bounds, and no
// crash.
TEST(Board, NumbersThatCannotBeAreNotGoneBy) {
  const auto made = Board::create(2);
  const auto memory = Segment::open(made->name());
  const std::vector<std::byte> whole(memory.data(), memory.data() + memory.bytes());
  const auto opened = Board::open(made->name());
  EXPECT_TRUE(made->claim_fault(0, 3, "the cause"));
  int refused = 0;
  const size_t header = memory.bytes() - 2 * sizeof(BoardSlot);
  for (size_t at = 0; at < header; at += sizeof(int32_t)) {
    for (const int32_t value : {int32_t{-1}, int32_t{0}, int32_t{3}, INT32_MAX, INT32_MIN}) {
      auto* field = memory.data() + at;
      int32_t before = 0;
      std::memcpy(&before, field, sizeof before);
      std::memcpy(field, &value, sizeof value);
      EXPECT_EQ(opened->ranks(), 2) << "as it was when it was opened";
      EXPECT_GT(opened->fault_exit_status(), 0) << "a job that failed must not look as if it had not";
      EXPECT_LT(opened->fault_exit_status(), 256);
      EXPECT_LE(opened->fault_message().size(), 1024U);
      EXPECT_GE(opened->stop_requested(), 0);
      EXPECT_LT(opened->stop_requested(), 65);
      opened->announced();
      const auto error = error_of_open(made->name());
      EXPECT_TRUE(error.empty() || error.find("board") != std::string::npos) << error;
      refused += error.empty() ? 0 : 1;
      std::memcpy(field, &before, sizeof before);
    }
  }
  EXPECT_GE(refused, 4 * 5 - 1) << "magic and namespace are of two such numbers each, the ranks of one";
  std::memset(memory.data() + header, 0xff, 2 * sizeof(BoardSlot));
  EXPECT_LE(opened->slot(1).last_operation().size(), 200U);
  EXPECT_EQ(Board::open(made->name())->ranks(), 2);
}

TEST(Board, IsFoundByItsJobWhileItsMakerLives) {
  const uint64_t job = SegmentName::random().words[0];
  EXPECT_EQ(Board::find(job, 3), nullptr);
  const auto other = Board::create(3, job + 1);
  const auto segment = Segment::create(100'000);  // no board
  EXPECT_EQ(Board::find(job, 3), nullptr);
  {
    const auto made = Board::create(3, job);
    const auto found = Board::find(job, 3);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->name().text(), made->name().text());
  }
  EXPECT_EQ(Board::find(job, 3), nullptr);
}

const Role killed_maker("killed maker", [] {
  const auto board = Board::create(3, std::stoull(given("JOB")));
  fmt::print(stderr, "{}", board->name().text());
  return ::kill(getpid(), SIGKILL);
});

TEST(Board, OfAKilledMakerIsNotFoundAndSwept) {
  const uint64_t job = SegmentName::random().words[0];
  Child child("killed maker", {{"JOB", std::to_string(job)}});
  ASSERT_EQ(child.wait(), 128 + SIGKILL);
  const auto path = SegmentName::parse(child.errors(), "its output").path();
  EXPECT_EQ(Board::find(job, 3), nullptr);
  Segment::sweep();
  EXPECT_FALSE(fs::exists(path));
}

// Another user who knows the job's number makes a board for it first.
TEST(Board, OfAnotherUserIsNotFound) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const uint64_t job = SegmentName::random().words[0];
  const auto made = Board::create(3, job);
  ASSERT_EQ(::chown(made->name().path().c_str(), 65534, 65534), 0);
  EXPECT_EQ(Board::find(job, 3), nullptr);
  EXPECT_THAT(error_of_open(made->name()), HasSubstr("belongs to user 65534 instead of 0"));
}

const Role reader_elsewhere("reader elsewhere", [] {
  if (::unshare(CLONE_NEWPID) != 0) return 77;
  const pid_t child = fork();  // the first process of the new namespace
  if (child == 0) {
    ::unshare(CLONE_NEWNS);
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    ::mount("proc", "/proc", "proc", 0, nullptr);
    fmt::print(stderr, "{}", error_of_open(SegmentName::parse(given("NAME"), "NAME")));
    _exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return 0;
});

TEST(Board, OfAnotherPidNamespaceIsRefused) {
  const auto made = Board::create(2);
  Child child("reader elsewhere", {{"NAME", made->name().text()}});
  const int status = child.wait();
  if (status == 77) GTEST_SKIP() << "may not make a pid namespace";
  EXPECT_EQ(status, 0);
  EXPECT_THAT(child.errors(), HasSubstr("start all ranks of a host in one container"));
}

TEST(BoardInMemory, HasSlotsOfItsOwn) {
  const auto board = Board::in_memory(2);
  EXPECT_EQ(board->ranks(), 2);
  EXPECT_EQ(board->slot(1).last_operation(), "starting");
  EXPECT_NE(&board->slot(0), &board->slot(1));
  EXPECT_FALSE(board->name().is_set());
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

}  // namespace
}  // namespace trireme
