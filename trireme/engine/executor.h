// The engine: a rank's step is a graph of tasks, and a task runs when everything it waits for has come. What it waits
// for are other tasks and messages; both are signals. A Schedule chooses among the tasks that are ready.
//
// There are two lanes. Compute tasks run on the thread that calls run(). Wire tasks only start something (a reduction,
// the wait for a message) and end when whoever carries it out calls complete(); they start at once on whichever thread
// signalled them last, so a hook inside autograd can send a bucket off while the backward pass goes on.
//
// A graph is built once and run once a step: nothing is allocated while it runs. Time and events come from outside: a
// simulation calls begin() and run_one() when its own clock says so, and complete() when its messages arrive.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "trireme/observe/recorder.h"
#include "trireme/spec/schedule.h"

namespace trireme {

using TaskId = uint32_t;

enum class Lane : uint8_t { compute, wire };

// Time as the engine sees it: real here, simulated elsewhere.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now_s() const = 0;
};

class RealClock final : public Clock {
 public:
  double now_s() const override { return static_cast<double>(monotonic_ns()) * 1e-9; }
};

// Someone who has work for a thread that would otherwise sleep: the communicator, whose messages it may carry.
class Helper {
 public:
  virtual ~Helper() = default;
  // Does one piece of work on the calling thread; false when there is none to be had right now. A thread that may not
  // be kept has passes to do as soon as their messages come, and other ranks may be waiting for these: it must not be
  // given work that ends only when other ranks come to it.
  virtual bool help(bool may_be_kept) = 0;
  // A task has failed with this error, which run() throws only once nothing is on the wire any more. What nobody will
  // complete, such as the wait for a message, must end now; and whoever may wait for this rank learns why.
  virtual void cancel(const std::exception_ptr& /*error*/) {}
};

class Graph {
 public:
  // `extra_signals`: how many signals from outside (hooks, messages) the task waits for besides `after`. `chunk`: of a
  // pass, which of the rank's parts of the model it goes through.
  TaskId add(TaskKind kind, int32_t index, Lane lane, std::function<void()> work, const std::vector<TaskId>& after = {},
             int32_t extra_signals = 0, int32_t chunk = 0);
  void add_dependency(TaskId task, TaskId after);
  size_t size() const { return tasks_.size(); }

 private:
  friend class Executor;
  struct Task {
    TaskKind kind;
    Lane lane;
    int32_t index;
    int32_t chunk;
    int32_t waits;  // signals needed before it may run
    std::function<void()> work;
    std::vector<TaskId> successors;
  };
  std::vector<Task> tasks_;
};

// Seconds in which the compute thread had nothing to do, by what it waited for.
struct IdleTime {
  double forward_s = 0, backward_s = 0, reduce_s = 0;

  double total_s() const { return forward_s + backward_s + reduce_s; }
};

class Executor {
 public:
  enum class Progress { ran, waiting, done };

  Executor(Recorder& recorder, const Clock& clock, Helper* helper = nullptr);

  // Runs every task of the graph, each compute task when the schedule chooses it; throws the first error of any task.
  void run(Graph& graph, const Schedule& schedule);

  // The parts of run(): everything that waits for nothing is started; then all the rest,
  void begin(Graph& graph, const Schedule& schedule);
  void finish();
  // or one compute task a call, if there is one.
  Progress run_one();

  // One thing that the task waits for has come. From any thread, also from inside a task.
  void signal(TaskId task);
  // A wire task has ended, well or with an error. From any thread.
  void complete(TaskId task, std::exception_ptr error = nullptr);

  const IdleTime& idle() const { return idle_; }  // of the last run

  // Called before each compute task: for tests that hold tasks back.
  void set_before_task(std::function<void()> before_task) { before_task_ = std::move(before_task); }

 private:
  void finished(TaskId task);
  void failed(std::exception_ptr error);
  void start_wire(TaskId task);
  void run_compute(TaskId task);
  void wait_for_work();

  Recorder& recorder_;
  const Clock& clock_;
  Helper* helper_;

  Graph* graph_ = nullptr;
  const Schedule* schedule_ = nullptr;
  StageState state_;
  std::unique_ptr<std::atomic<int32_t>[]> waits_;
  size_t waits_capacity_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ReadyTask> ready_;   // guarded by mutex_
  std::vector<TaskId> ready_ids_;  // beside ready_
  size_t remaining_ = 0;           // guarded by mutex_
  size_t wires_in_flight_ = 0;     // guarded by mutex_
  std::exception_ptr error_;       // guarded by mutex_
  IdleTime idle_;
  std::function<void()> before_task_;
};

}  // namespace trireme
