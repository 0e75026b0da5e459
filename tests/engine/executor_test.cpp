// The executor on small graphs: order, signals from hooks, wires that others complete, errors, and graphs that cannot
// end.
#include "trireme/engine/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/engine/in_order.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

class ExecutorTest : public testing::Test {
 protected:
  // A compute task that writes its name down.
  TaskId note(const std::string& name, const std::vector<TaskId>& after = {}, int32_t extra_signals = 0) {
    return graph_.add(
        TaskKind::forward, 0, Lane::compute, [this, name] { ran_.push_back(name); }, after, extra_signals);
  }

  // What run() throws, as text.
  std::string error_of_run() {
    try {
      executor_.run(graph_, schedule_);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  Recorder recorder_;
  InOrder schedule_;
  RealClock clock_;
  Executor executor_{recorder_, clock_};
  Graph graph_;
  std::vector<std::string> ran_;
};

// A failed task is heard of at once, though run() must wait for what is on the wire before it throws.
TEST_F(ExecutorTest, AnErrorIsHandedOnBeforeTheWireEnds) {
  struct Listener final : Helper {
    bool help(bool) override { return false; }
    void cancel(const std::exception_ptr& error) override { heard.set_value(error); }
    std::promise<std::exception_ptr> heard;
  } listener;
  Executor executor(recorder_, clock_, &listener);
  const auto wire = graph_.add(TaskKind::reduce, 0, Lane::wire, [] {});
  graph_.add(TaskKind::forward, 0, Lane::compute, [] { fail("the data end here"); });
  // Whoever hears of the error ends what is on the wire, as peers do that leave.
  std::thread peer([&] {
    auto heard = listener.heard.get_future();
    if (heard.wait_for(10s) != std::future_status::ready) ADD_FAILURE() << "nobody was told";
    executor.complete(wire, std::make_exception_ptr(Error(Error::Kind::failed, "a peer has left")));
  });
  std::string problem;
  try {
    executor.run(graph_, schedule_);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  peer.join();
  EXPECT_EQ(problem, "the data end here");
}

TEST_F(ExecutorTest, AnEmptyGraphEndsAtOnce) { executor_.run(graph_, schedule_); }

TEST_F(ExecutorTest, ATaskWaitsForAllItsPredecessors) {
  // Listed in the wrong order on purpose: dependencies, not the list, decide.
  const auto last = note("last");
  const auto left = note("left");
  const auto right = note("right");
  const auto first = note("first");
  graph_.add_dependency(last, left);
  graph_.add_dependency(last, right);
  graph_.add_dependency(left, first);
  graph_.add_dependency(right, first);
  executor_.run(graph_, schedule_);
  EXPECT_THAT(ran_, ElementsAre("first", "left", "right", "last"));
}

TEST_F(ExecutorTest, InOrderTakesTheEarliestListedOfTheReady) {
  const auto gate = note("gate");
  note("c", {gate});
  note("free");  // ready from the start, listed after c
  note("d", {gate});
  executor_.run(graph_, schedule_);
  EXPECT_THAT(ran_, ElementsAre("gate", "c", "free", "d"));
}

TEST_F(ExecutorTest, TheScheduleSeesKindsIndicesAndOrder) {
  class Backwards final : public Schedule {
   public:
    const char* name() const override { return "backwards"; }
    size_t choose(std::span<const ReadyTask> ready, const StageState&) const override {
      size_t best = 0;
      for (size_t i = 1; i < ready.size(); ++i) {
        EXPECT_EQ(ready[i].kind, TaskKind::backward);
        EXPECT_EQ(static_cast<uint32_t>(ready[i].index), 10 + ready[i].order);
        if (ready[i].index > ready[best].index) best = i;
      }
      return best;
    }
    TaskKind awaited(const StageState&) const override { return TaskKind::backward; }
    int in_flight() const override { return 4; }
  };
  const Backwards schedule;
  std::vector<int> indices;
  for (int i = 10; i < 14; ++i) {
    graph_.add(TaskKind::backward, i, Lane::compute, [&indices, i] { indices.push_back(i); });
  }
  Executor executor(recorder_, clock_);
  executor.run(graph_, schedule);
  EXPECT_THAT(indices, ElementsAre(13, 12, 11, 10));
}

TEST_F(ExecutorTest, RefusesDependenciesThatCannotBe) {
  const auto only = note("only");
  EXPECT_THROW(graph_.add_dependency(only, only), Error);
  EXPECT_THROW(graph_.add_dependency(only, 7), Error);
  EXPECT_THROW(graph_.add_dependency(7, only), Error);
  EXPECT_EQ(graph_.size(), 1U);
}

TEST_F(ExecutorTest, WritesDownWhatEachComputeTaskIs) {
  BoardSlot slot;
  Recorder recorder(&slot);
  Executor executor(recorder, clock_);
  recorder.set_step(4);
  std::string seen;
  graph_.add(TaskKind::optimize, 3, Lane::compute, [&] { seen = slot.last_operation(); });
  executor.run(graph_, schedule_);
  EXPECT_EQ(seen, "optimize 3 (step 4)");
  EXPECT_EQ(slot.progress.load(), 1U);
}

TEST_F(ExecutorTest, AHookStartsAWireWhileItsTaskGoesOn) {
  // backward signals the wire half-way, as a hook inside autograd does; another thread completes the wire before
  // backward returns; optimize waits for both.
  std::thread carrier;
  std::promise<void> completed;
  const auto wire = graph_.add(
      TaskKind::reduce, 0, Lane::wire,
      [&] {
        ran_.push_back("send");
        carrier = std::thread([&] {
          executor_.complete(0);
          completed.set_value();
        });
      },
      {}, 1);
  const auto backward = graph_.add(TaskKind::backward, 0, Lane::compute, [&] {
    ran_.push_back("backward begins");
    executor_.signal(wire);
    EXPECT_EQ(completed.get_future().wait_for(60s), std::future_status::ready);
    ran_.push_back("backward ends");
  });
  note("optimize", {wire, backward});
  executor_.run(graph_, schedule_);
  carrier.join();
  EXPECT_THAT(ran_, ElementsAre("backward begins", "send", "backward ends", "optimize"));
}

TEST_F(ExecutorTest, ATaskWaitsForAllItsExtraSignals) {
  const auto waiting = note("waiting", {}, 3);
  for (const char* name : {"one", "two", "three"}) {
    graph_.add(TaskKind::backward, 0, Lane::compute, [this, name, waiting] {
      ran_.push_back(name);
      executor_.signal(waiting);
    });
  }
  note("unrelated");
  executor_.run(graph_, schedule_);
  // Listed first, so it runs as soon as the third signal is there.
  EXPECT_THAT(ran_, ElementsAre("one", "two", "three", "waiting", "unrelated"));
}

TEST_F(ExecutorTest, WiresFollowEachOtherWithoutTheComputeThread) {
  const auto first = graph_.add(TaskKind::reduce, 0, Lane::wire, [&] {
    ran_.push_back("first");
    executor_.complete(0);
  });
  graph_.add(TaskKind::receive, 0, Lane::wire,
             [&] {
               ran_.push_back("second");
               executor_.complete(1);
             },
             {first});
  executor_.run(graph_, schedule_);
  EXPECT_THAT(ran_, ElementsAre("first", "second"));
}

// Completes one wire of an executor each time it is asked to help.
class Carrier final : public Helper {
 public:
  bool help(bool) override {
    ++asked;
    if (queue.empty()) return false;
    const auto task = queue.back();
    queue.pop_back();
    executor->complete(task);
    return true;
  }
  Executor* executor = nullptr;
  std::vector<TaskId> queue;
  int asked = 0;
};

TEST_F(ExecutorTest, AnIdleThreadHelps) {
  Carrier carrier;
  Executor executor(recorder_, clock_, &carrier);
  carrier.executor = &executor;
  std::vector<TaskId> wires;
  for (int i = 0; i < 3; ++i) {
    wires.push_back(
        graph_.add(TaskKind::reduce, i, Lane::wire, [&, i] { carrier.queue.push_back(static_cast<TaskId>(i)); }));
  }
  graph_.add(TaskKind::forward, 0, Lane::compute,
             [&] { EXPECT_EQ(carrier.asked, 0) << "there was compute work to do"; });
  graph_.add(TaskKind::optimize, 0, Lane::compute, [&] { ran_.push_back("end"); }, wires);
  executor.run(graph_, schedule_);
  EXPECT_EQ(carrier.asked, 3);
  EXPECT_THAT(ran_, ElementsAre("end"));
}

// Others may wait for a pass whose message is still to come: until all are done, nothing may keep the thread.
TEST_F(ExecutorTest, AThreadWithPassesToDoIsNotKept) {
  class Asker final : public Helper {
   public:
    bool help(bool may_be_kept) override {
      kept.push_back(may_be_kept);
      executor->complete(may_be_kept ? 2 : 0);
      return true;
    }
    Executor* executor = nullptr;
    std::vector<bool> kept;
  } asker;
  Executor executor(recorder_, clock_, &asker);
  asker.executor = &executor;
  const auto message = graph_.add(TaskKind::receive, 0, Lane::wire, [] {});
  graph_.add(TaskKind::backward, 0, Lane::compute, [&] { ran_.push_back("pass"); }, {message});
  const auto sum = graph_.add(TaskKind::reduce, 0, Lane::wire, [] {});
  graph_.add(TaskKind::optimize, 0, Lane::compute, [&] { ran_.push_back("end"); }, {sum});
  executor.run(graph_, ListSchedule("a pass", {{TaskKind::backward, 0}}));
  EXPECT_THAT(asker.kept, ElementsAre(false, true));
  EXPECT_THAT(ran_, ElementsAre("pass", "end"));
}

TEST_F(ExecutorTest, ThrowsTheErrorOfAComputeTask) {
  const auto bad = graph_.add(TaskKind::forward, 0, Lane::compute, [] { throw std::runtime_error("no such token"); });
  note("after", {bad});
  note("independent");
  EXPECT_EQ(error_of_run(), "no such token");
  EXPECT_TRUE(ran_.empty()) << "nothing more is begun after an error";
}

TEST_F(ExecutorTest, ThrowsTheErrorOfAWireThatCouldNotStart) {
  const auto bad = graph_.add(TaskKind::reduce, 0, Lane::wire, [] { fail("the queue is closed"); });
  note("after", {bad});
  EXPECT_EQ(error_of_run(), "the queue is closed");
  EXPECT_TRUE(ran_.empty());
}

TEST_F(ExecutorTest, ThrowsTheFirstErrorAndWaitsForWiresInFlight) {
  std::thread carrier;
  std::promise<void> failed;
  bool written = false;  // the wire's last access to a buffer of the caller
  graph_.add(TaskKind::reduce, 0, Lane::wire, [&] {
    carrier = std::thread([&] {
      failed.get_future().wait();
      std::this_thread::sleep_for(20ms);
      written = true;
      executor_.complete(0, std::make_exception_ptr(std::runtime_error("a consequence")));
    });
  });
  graph_.add(TaskKind::forward, 0, Lane::compute, [&] {
    failed.set_value();
    throw std::runtime_error("the cause");
  });
  EXPECT_EQ(error_of_run(), "the cause");
  EXPECT_TRUE(written);
  carrier.join();
}

TEST_F(ExecutorTest, AWireThatFailsElsewhereEndsTheRun) {
  std::thread carrier;
  const auto wire = graph_.add(TaskKind::reduce, 0, Lane::wire, [&] {
    carrier = std::thread([&] {
      std::this_thread::sleep_for(5ms);
      executor_.complete(0, std::make_exception_ptr(std::runtime_error("rank 1 is gone")));
    });
  });
  note("before");
  note("after", {wire});
  EXPECT_EQ(error_of_run(), "rank 1 is gone");
  EXPECT_THAT(ran_, ElementsAre("before"));
  carrier.join();
}

TEST_F(ExecutorTest, RunsAgainAfterAnError) {
  bool bad = true;
  const auto task = graph_.add(TaskKind::forward, 0, Lane::compute, [&] {
    if (bad) throw std::runtime_error("once");
  });
  note("after", {task});
  EXPECT_EQ(error_of_run(), "once");
  bad = false;
  EXPECT_EQ(error_of_run(), "");
  EXPECT_THAT(ran_, ElementsAre("after"));
}

TEST_F(ExecutorTest, AGraphThatCannotEndIsAnError) {
  note("free");
  const auto first = note("first"), second = note("second", {first});
  graph_.add_dependency(first, second);
  EXPECT_THAT(error_of_run(), HasSubstr("the step cannot end: 2 tasks wait"));
  EXPECT_THAT(ran_, ElementsAre("free"));
}

TEST_F(ExecutorTest, ASignalThatNeverComesIsAnError) {
  std::thread carrier;
  const auto wire =
      graph_.add(TaskKind::reduce, 0, Lane::wire, [&] { carrier = std::thread([&] { executor_.complete(0); }); });
  note("waiting", {wire}, 1);
  EXPECT_THAT(error_of_run(), HasSubstr("the step cannot end: 1 task waits"));
  carrier.join();
}

// Time that only passes when someone says so: idle time can be checked to the digit.
class StepClock final : public Clock {
 public:
  double now_s() const override { return now; }
  double now = 100;
};

TEST_F(ExecutorTest, IdleTimeIsTheTimeWithoutComputeWork) {
  StepClock clock;
  class SlowCarrier final : public Helper {
   public:
    explicit SlowCarrier(StepClock& clock) : clock_(clock) {}
    bool help(bool) override {
      clock_.now += 2.5;
      executor->complete(0);
      return true;
    }
    Executor* executor = nullptr;

   private:
    StepClock& clock_;
  } carrier(clock);
  Executor executor(recorder_, clock, &carrier);
  carrier.executor = &executor;
  const auto wire = graph_.add(TaskKind::reduce, 0, Lane::wire, [] {});
  graph_.add(TaskKind::forward, 0, Lane::compute, [&] { clock.now += 10; });
  graph_.add(TaskKind::optimize, 0, Lane::compute, [&] { clock.now += 1; }, {wire});
  for (int run = 0; run < 2; ++run) {
    executor.run(graph_, schedule_);
    EXPECT_DOUBLE_EQ(executor.idle().total_s(), 2.5) << "of the last run alone";
  }
}

}  // namespace
}  // namespace trireme
