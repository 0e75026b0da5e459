// Watchdogs of real processes: who is killed, stopped, failed or stuck is named, and nobody stays behind.
#include "trireme/observe/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/support/child.h"
#include "trireme/base/log.h"
#include "trireme/observe/recorder.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int first_rank = 4;  // as on the second host of a job: ranks are not slots
constexpr int left_too_long = 99;

// One rank of the job: starts its watchdog and then does what BEHAVIOUR says until it is told to stop.
const Role rank_role("rank", [] {
  const auto board = Board::open(SegmentName::parse(given("BOARD"), "BOARD"));
  const int local_rank = std::stoi(given("LOCAL_RANK")), rank = local_rank + first_rank;
  log::set_rank(rank);
  Recorder recorder(&board->slot(local_rank));
  recorder.set_step(17);
  Watchdog watchdog(board, local_rank, rank,
                    {.heartbeat_s = std::stod(given("HEARTBEAT")),
                     .stop_s = std::stod(given("STOP")),
                     .before_exit = [] { std::fputs("flushed\n", stderr); },
                     .advice = "; go on with --resume",
                     .late_s = std::stod(given("LATE"))});
  const auto behaviour = given("BEHAVIOUR");
  recorder.compute("reduce", 3);
  if (behaviour == "waits") recorder.communicate("reduce", 3);  // for the others, in a collective
  for (int i = 0; behaviour == "loaded" && i < 50; ++i) recorder.compute("forward", i);  // and is stuck in the last one
  for (int i = 0; i < 12'000; ++i) {
    if (behaviour == "busy") recorder.compute("reduce", 3);
    if (behaviour == "slow") recorder.still_working();
    if (board->stop_requested() == SIGTERM || (behaviour == "leave" && board->stop_requested())) {
      watchdog.stand_down();
      return 0;
    }
    if (behaviour == "fail" && board->stop_requested()) {
      board->claim_fault(rank, 3, "no such file");
      return 3;
    }
    std::this_thread::sleep_for(5ms);
  }
  return left_too_long;
});

class WatchdogTest : public testing::Test {
 protected:
  WatchdogTest() : board_(Board::create(2)) {}

  // Starts both ranks and waits until they are at work.
  void start(const std::string& behaviour_0, const std::string& behaviour_1) {
    int local_rank = 0;
    for (const auto& behaviour : {behaviour_0, behaviour_1}) {
      ranks_.push_back(std::make_unique<Child>("rank", Child::Environment{{"BOARD", board_->name().text()},
                                                                          {"LOCAL_RANK", std::to_string(local_rank++)},
                                                                          {"BEHAVIOUR", behaviour},
                                                                          {"HEARTBEAT", heartbeat_},
                                                                          {"STOP", stop_},
                                                                          {"LATE", late_}}));
    }
    for (int i = 0; i < 2; ++i) {
      for (int tries = 0; tries < 6'000 && board_->slot(i).progress.load() == 0; ++tries)
        std::this_thread::sleep_for(10ms);
      ASSERT_EQ(board_->slot(i).state.load(), RankState::running) << ranks_[static_cast<size_t>(i)]->errors();
    }
    std::this_thread::sleep_for(300ms);  // each has looked at the other at least once
  }

  std::string named(int local_rank) const {
    return fmt::format("rank {} (process {})", first_rank + local_rank, ranks_[static_cast<size_t>(local_rank)]->pid());
  }

  std::shared_ptr<Board> board_;
  std::vector<std::unique_ptr<Child>> ranks_;
  std::string heartbeat_ = "60", stop_ = "0", late_ = "60";
};

TEST_F(WatchdogTest, AKilledRankIsNamed) {
  start("busy", "busy");
  const auto killed = std::chrono::steady_clock::now();
  ranks_[1]->signal(SIGKILL);
  EXPECT_EQ(ranks_[0]->wait(), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 20s) << "it should take milliseconds";
  EXPECT_EQ(ranks_[1]->wait(), 128 + SIGKILL);
  EXPECT_THAT(ranks_[0]->errors(),
              AllOf(HasSubstr(fmt::format(
                        "error: rank 4: {} died; its last operation: reduce 3 (step 17). The job ends", named(1))),
                    HasSubstr("The job ends; go on with --resume"), HasSubstr("flushed")));
  EXPECT_THAT(board_->fault_message(), HasSubstr(named(1) + " died"));
  EXPECT_EQ(board_->slot(0).state.load(), RankState::failed);
}

TEST_F(WatchdogTest, AProcessNumberThatCannotBeIsNamed) {
  ranks_.push_back(nullptr);
  board_->slot(0).pid.store(-7);
  board_->slot(0).rank.store(first_rank);
  board_->slot(0).beat_ns.store(monotonic_ns());
  board_->slot(0).state.store(RankState::running);
  ranks_.push_back(std::make_unique<Child>("rank", Child::Environment{{"BOARD", board_->name().text()},
                                                                      {"LOCAL_RANK", "1"},
                                                                      {"BEHAVIOUR", "busy"},
                                                                      {"HEARTBEAT", heartbeat_},
                                                                      {"STOP", stop_},
                                                                      {"LATE", late_}}));
  EXPECT_EQ(ranks_[1]->wait(), 1);
  EXPECT_THAT(ranks_[1]->errors(), HasSubstr("rank 4 (process -7) has written a process number that cannot be"));
}

TEST_F(WatchdogTest, AStoppedRankIsNamedAndFollowsWhenItWakes) {
  heartbeat_ = "1";
  start("busy", "busy");
  ranks_[0]->signal(SIGSTOP);
  EXPECT_EQ(ranks_[1]->wait(), 1);
  EXPECT_THAT(ranks_[1]->errors(),
              AllOf(HasSubstr(named(0) + " has not answered for"), HasSubstr("reduce 3 (step 17)")));
  EXPECT_TRUE(ranks_[0]->running());
  ranks_[0]->signal(SIGCONT);
  EXPECT_EQ(ranks_[0]->wait(), 1);
  EXPECT_THAT(ranks_[0]->errors(), Not(HasSubstr("error"))) << "the other one has already spoken for the job";
}

TEST_F(WatchdogTest, AJobThatWasSuspendedGoesOn) {
  heartbeat_ = "1";
  start("busy", "busy");
  for (auto& rank : ranks_) rank->signal(SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  for (auto& rank : ranks_) rank->signal(SIGCONT);
  std::this_thread::sleep_for(600ms);
  EXPECT_FALSE(board_->faulted()) << board_->fault_message();
  board_->request_stop(SIGTERM);
  for (auto& rank : ranks_) EXPECT_EQ(rank->wait(), 0) << rank->errors();
}

TEST_F(WatchdogTest, OneThatFailsTakesTheOthersAlongWithItsStatus) {
  start("busy", "fail");
  board_->request_stop(SIGINT);
  EXPECT_EQ(ranks_[1]->wait(), 3);
  EXPECT_EQ(ranks_[0]->wait(), 3);
  EXPECT_THAT(ranks_[0]->errors(), AllOf(HasSubstr("flushed"), Not(HasSubstr("error"))));
  EXPECT_EQ(board_->fault_message(), "no such file");
}

TEST_F(WatchdogTest, OneThatStandsDownIsNotMissed) {
  heartbeat_ = "1";
  start("busy", "leave");
  board_->request_stop(SIGINT);
  EXPECT_EQ(ranks_[1]->wait(), 0);
  rusage before{}, after{};
  std::this_thread::sleep_for(1500ms);
  EXPECT_TRUE(ranks_[0]->running()) << ranks_[0]->errors();
  ::getrusage(RUSAGE_CHILDREN, &before);
  board_->request_stop(SIGTERM);
  EXPECT_EQ(ranks_[0]->wait(), 0);
  ::getrusage(RUSAGE_CHILDREN, &after);
  EXPECT_EQ(ranks_[0]->errors(), "");
  EXPECT_FALSE(board_->faulted());
  // The survivor's thread once woke without end, because a dead rank's descriptor stays readable.
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  EXPECT_LT(seconds(after.ru_utime) + seconds(after.ru_stime) - seconds(before.ru_utime) - seconds(before.ru_stime),
            1.0);
}

TEST_F(WatchdogTest, OneWithoutProgressIsWarnedAboutAndEndsTheJob) {
  late_ = "0.5";
  stop_ = "1.5";
  start("busy", "stuck");
  for (auto& rank : ranks_) EXPECT_EQ(rank->wait(), 1);
  EXPECT_THAT(ranks_[0]->errors(),
              AllOf(HasSubstr(fmt::format("warning: rank 4: {} made no progress for", named(1))),
                    HasSubstr("its last operation: reduce 3 (step 17) (the job goes on, and is stopped after")));
  EXPECT_THAT(ranks_[1]->errors(), Not(HasSubstr("warning"))) << "one speaker is enough";
  EXPECT_THAT(ranks_[0]->errors() + ranks_[1]->errors(),
              AllOf(HasSubstr("(watchdog.stop)"), HasSubstr("The job ends")));
  EXPECT_THAT(board_->fault_message(), HasSubstr(named(1) + " made no progress"));
}

TEST_F(WatchdogTest, OneThatIsSlowButAtWorkGoesOn) {
  late_ = "0.5";
  stop_ = "1";
  start("slow", "busy");
  std::this_thread::sleep_for(2000ms);
  EXPECT_FALSE(board_->faulted()) << board_->fault_message();
  board_->request_stop(SIGTERM);
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->wait(), 0);
    EXPECT_EQ(rank->errors(), "");
  }
}

TEST_F(WatchdogTest, TheSpeakerIsNotTheOneThatIsStuck) {
  late_ = "0.5";
  start("stuck", "busy");
  for (int tries = 0; tries < 6'000 && ranks_[1]->errors().empty(); ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_THAT(ranks_[1]->errors(),
              AllOf(HasSubstr(named(0) + " made no progress for"), HasSubstr("(the job goes on)")));
  std::this_thread::sleep_for(600ms);
  EXPECT_TRUE(ranks_[0]->running() && ranks_[1]->running()) << "without watchdog.stop it is only a warning";
  EXPECT_EQ(ranks_[1]->errors().find("made no progress"), ranks_[1]->errors().rfind("made no progress")) << "said once";
  board_->request_stop(SIGTERM);
  for (auto& rank : ranks_) EXPECT_EQ(rank->wait(), 0);
}

// A rank with a larger share makes more operations: it may be behind all the same.
TEST_F(WatchdogTest, TheOneThatIsAwaitedIsNamedHoweverManyOperationsItMade) {
  late_ = "0.5";
  start("waits", "loaded");
  for (int tries = 0; tries < 6'000 && ranks_[0]->errors().empty(); ++tries) std::this_thread::sleep_for(10ms);
  EXPECT_THAT(ranks_[0]->errors(),
              AllOf(HasSubstr(named(1) + " made no progress for"), HasSubstr("forward 49 (step 17)")));
  EXPECT_THAT(ranks_[1]->errors(), Not(HasSubstr(named(0))));
  board_->request_stop(SIGTERM);
  for (auto& rank : ranks_) EXPECT_EQ(rank->wait(), 0);
}

TEST(WatchdogAlone, EndsAtOnce) {
  const auto board = Board::in_memory(1);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) Watchdog(board, 0, 0, {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s) << "it does not wait for the next beat";
  EXPECT_EQ(board->slot(0).pid.load(), getpid());
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) { return trireme::main_with_roles(argc, argv); }
