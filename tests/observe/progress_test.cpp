// The progress line: plain lines where there is no terminal, one live line on a pseudo-terminal.
#include "trireme/observe/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>

#include "trireme/base/log.h"

namespace trireme {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

StepReport report_of(int64_t step, int64_t steps = 500) {
  StepReport report;
  report.step = step;
  report.steps = steps;
  report.loss = 2.12341;
  report.grad_norm = 0.912;
  report.step_s = 0.25;
  report.items_per_s = 12345.4;
  report.memory = {{"parameters", 10'100'000}, {"optimizer", 300'000'000}};
  return report;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

template <class Run>
std::string plain(Run run) {
  testing::internal::CaptureStderr();
  run();
  return testing::internal::GetCapturedStderr();
}

TEST(PlainProgress, FirstLineAndMemoryByOwner) {
  const auto text = plain([] { Progress(100).step(report_of(1)); });
  EXPECT_EQ(text,
            "step 1/500  loss 2.1234  grad_norm 0.91  memory 0.31 GB  tps 12,345  eta 2 min 5 s\n"
            "memory: parameters 10.1 MB, optimizer 300 MB\n");
}

TEST(PlainProgress, EveryFewStepsAndAlwaysTheFirstAndTheLast) {
  const auto text = plain([] {
    Progress progress(4);
    for (int64_t step = 1; step <= 10; ++step) progress.step(report_of(step, 10));
    progress.finish();
  });
  EXPECT_EQ(count(text, "step "), 4);
  for (const auto* line : {"step 1/10 ", "step 4/10 ", "step 8/10 ", "step 10/10 "}) EXPECT_THAT(text, HasSubstr(line));
  EXPECT_EQ(count(text, "memory:"), 1);
  EXPECT_THAT(text, EndsWith("tps 12,345\n"));  // nothing is left to wait for
}

TEST(PlainProgress, ARunThatEndsEarlyStillShowsItsLastStepOnce) {
  const auto text = plain([] {
    Progress progress(100);
    for (int64_t step = 1; step <= 7; ++step) progress.step(report_of(step));
    progress.finish();
    progress.finish();
  });
  EXPECT_EQ(count(text, "step "), 2);
  EXPECT_THAT(text, HasSubstr("\nstep 7/500 "));
}

TEST(PlainProgress, SaysNothingOfARunWithoutSteps) {
  EXPECT_EQ(plain([] { Progress(1).finish(); }), "");
}

TEST(PlainProgress, ShowsWhatIsUnusual) {
  auto report = report_of(1);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = 1.5e-5;
  report.items = "samples";
  report.items_per_s = 3.25;
  report.skipped = 2;
  report.memory.clear();
  const auto text = plain([&] { Progress(1).step(report); });
  EXPECT_EQ(text, "step 1/500  loss nan  grad_norm 1.50e-05  sps 3.2  eta 2 min 5 s  skipped 2\n");
}

TEST(PlainProgress, TheLastEvaluationStaysInSight) {
  const auto text = plain([] {
    Progress progress(10);
    auto evaluated = report_of(5);
    evaluated.eval_loss = 2.5;
    evaluated.eval_accuracy = 0.875;
    progress.step(report_of(1));
    progress.step(evaluated);
    progress.step(report_of(10));
  });
  EXPECT_THAT(text, HasSubstr("step 10/500  loss 2.1234  eval_loss 2.5000  accuracy 87.50 %  grad_norm"));
}

TEST(PlainProgress, EtaForgetsASlowFirstStep) {
  const auto text = plain([] {
    Progress progress(60);
    auto slow = report_of(1, 100);
    slow.step_s = 100;
    progress.step(slow);
    for (int64_t step = 2; step <= 60; ++step) progress.step(report_of(step, 100));
  });
  EXPECT_THAT(text, HasSubstr("step 60/100 "));
  EXPECT_THAT(text, HasSubstr("eta 10.0 s"));  // 40 steps of 0.25 s
}

// Puts a pseudo-terminal in the place of standard error while it lives.
class PseudoTerminal {
 public:
  explicit PseudoTerminal(unsigned short columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    if (openpty(&master_, &slave_, nullptr, nullptr, &size) != 0) std::abort();
    fcntl(master_, F_SETFL, O_NONBLOCK);
    before_ = dup(STDERR_FILENO);
    dup2(slave_, STDERR_FILENO);
  }
  ~PseudoTerminal() {
    dup2(before_, STDERR_FILENO);
    for (const int descriptor : {before_, slave_, master_}) close(descriptor);
  }

  // What was shown since the last call. A terminal makes "\r\n" of every newline. The kernel hands it over in pieces,
  // a moment later: all has come when nothing has for a while.
  std::string shown() {
    constexpr int quiet_ms = 20;
    std::string text;
    pollfd ready{master_, POLLIN, 0};
    while (poll(&ready, 1, quiet_ms) > 0) {
      char piece[4096];
      const ssize_t size = read(master_, piece, sizeof piece);
      if (size <= 0) break;
      text.append(piece, static_cast<size_t>(size));
    }
    return text;
  }

 private:
  int master_ = -1, slave_ = -1, before_ = -1;
};

class LiveProgress : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
  }
  void TearDown() override { unsetenv("NO_COLOR"); }

  static void wait_for_the_next_redraw() { std::this_thread::sleep_for(std::chrono::milliseconds(110)); }
};

TEST_F(LiveProgress, RedrawsOneLineInPlaceAndLeavesTheLast) {
  PseudoTerminal terminal(120);
  Progress progress(100);
  progress.step(report_of(1));
  EXPECT_EQ(terminal.shown(),
            "\rstep 1/500  loss 2.1234  grad_norm 0.91  memory 0.31 GB  tps 12,345  eta 2 min 5 s"
            "  [>                     ]\x1b[K");
  wait_for_the_next_redraw();
  progress.step(report_of(250));
  EXPECT_EQ(terminal.shown(),
            "\rstep 250/500  loss 2.1234  grad_norm 0.91  memory 0.31 GB  tps 12,345  eta 1 min 3 s"
            "  [===========>          ]\x1b[K");
  progress.step(report_of(251));
  progress.finish();
  const auto last = terminal.shown();
  EXPECT_THAT(last, StartsWith("\rstep 251/500 "));
  EXPECT_THAT(last, EndsWith("]\x1b[K\r\n"));
}

TEST_F(LiveProgress, RedrawsAtMostTenTimesASecond) {
  PseudoTerminal terminal(100);
  Progress progress(1);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= 1000; ++step) progress.step(report_of(step, 2000));
  const auto tenths = (std::chrono::steady_clock::now() - start) / std::chrono::milliseconds(100);
  EXPECT_LE(count(terminal.shown(), "\rstep"), 1 + tenths);
}

TEST_F(LiveProgress, ANoteClearsTheLineFirst) {
  PseudoTerminal terminal(100);
  {
    Progress progress(1);
    progress.step(report_of(1));
    terminal.shown();
    log::info("checkpoint saved");
    EXPECT_EQ(terminal.shown(), "\r\x1b[Kcheckpoint saved\r\n");
    progress.step(report_of(2));
    log::info("another");
    EXPECT_EQ(terminal.shown(), "another\r\n");  // the line was not back yet
    wait_for_the_next_redraw();
    progress.step(report_of(3));
    EXPECT_THAT(terminal.shown(), StartsWith("\rstep 3/500 "));
  }
  EXPECT_THAT(terminal.shown(), EndsWith("\r\n"));  // a run that throws leaves the line whole too
  log::info("after the run");
  EXPECT_EQ(terminal.shown(), "after the run\r\n");
}

TEST_F(LiveProgress, ANarrowTerminalLosesTheLeastImportantWords) {
  PseudoTerminal terminal(60);
  Progress progress(1);
  progress.step(report_of(1));
  EXPECT_EQ(terminal.shown(), "\rstep 1/500  loss 2.1234  tps 12,345  eta 2 min 5 s\x1b[K");
}

TEST_F(LiveProgress, ColoursUnlessAskedNotTo) {
  unsetenv("NO_COLOR");
  PseudoTerminal terminal(120);
  Progress progress(1);
  auto report = report_of(1);
  report.skipped = 1;
  progress.step(report);
  const auto text = terminal.shown();
  EXPECT_THAT(text, HasSubstr("\x1b[2mloss\x1b[0m 2.1234"));
  EXPECT_THAT(text, HasSubstr("\x1b[2mskipped\x1b[0m \x1b[31m1\x1b[0m"));
}

TEST_F(LiveProgress, ATerminalThatCannotRedrawGetsPlainLines) {
  setenv("TERM", "dumb", 1);
  PseudoTerminal terminal(100);
  Progress progress(1);
  progress.step(report_of(1));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace trireme
