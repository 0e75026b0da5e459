// The executor run after run: wires completed by other threads in any order, no allocation once warm, and what an
// empty task costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <random>
#include <thread>

#include "tests/engine/in_order.h"
#include "trireme/engine/executor.h"

namespace {
thread_local bool counting = false;
thread_local int64_t allocations = 0;

void* counted(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

// The whole program allocates through these, so that a test can count.
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace trireme {
namespace {

// Threads that complete the wires given to them, each time in another order.
class Carriers {
 public:
  Carriers(Executor& executor, int threads) : executor_(executor) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { run(static_cast<unsigned>(i)); });
  }
  ~Carriers() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void give(TaskId task) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(task);
    }
    work_.notify_one();
  }

 private:
  void run(unsigned seed) {
    std::mt19937 random(seed);
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::swap(queue_[random() % queue_.size()], queue_.back());
      const auto task = queue_.back();
      queue_.pop_back();
      lock.unlock();
      if (random() % 8 == 0) std::this_thread::yield();
      executor_.complete(task);
      lock.lock();
    }
  }

  Executor& executor_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::vector<TaskId> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// The shape of a training step: backward signals a wire for each bucket, and each bucket is optimized after its wire
// and after a norm that waits for all of them.
struct Step {
  static constexpr int buckets = 5;

  Step(Executor& executor, std::function<void(TaskId)> carry) {
    std::vector<TaskId> wires;
    for (int i = 0; i < buckets; ++i) {
      const auto id = static_cast<TaskId>(i);
      wires.push_back(graph.add(
          TaskKind::reduce, i, Lane::wire,
          [this, carry, id] {
            sent.fetch_add(1);
            carry(id);
          },
          {}, 1));
    }
    const auto forward = graph.add(TaskKind::forward, 0, Lane::compute, [this] { ++computed; });
    graph.add(TaskKind::backward, 0, Lane::compute,
              [this, &executor] {
                ++computed;
                for (TaskId wire = 0; wire < buckets; ++wire) executor.signal(wire);
              },
              {forward});
    const auto norm = graph.add(
        TaskKind::norm, 0, Lane::compute,
        [this] {
          ++computed;
          all_sent = all_sent && sent.load() % buckets == 0;
        },
        wires);
    for (int i = 0; i < buckets; ++i) {
      graph.add(TaskKind::optimize, i, Lane::compute, [this] { ++computed; }, {norm, wires[static_cast<size_t>(i)]});
    }
  }

  Graph graph;
  std::atomic<int64_t> sent{0};
  int64_t computed = 0;
  bool all_sent = true;
};

constexpr int computed_per_step = 3 + Step::buckets;

TEST(ExecutorStress, TenThousandRuns) {
  Recorder recorder;
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  Step step(executor, [&](TaskId wire) { executor.complete(wire); });
  for (int run = 0; run < 10'000; ++run) executor.run(step.graph, schedule);
  EXPECT_EQ(step.computed, 10'000 * computed_per_step);
  EXPECT_EQ(step.sent.load(), 10'000 * Step::buckets);
  EXPECT_TRUE(step.all_sent);
}

TEST(ExecutorStress, TenThousandRunsWithWiresCompletedInAnyOrder) {
  Recorder recorder;
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  Carriers carriers(executor, 3);
  Step step(executor, [&](TaskId wire) { carriers.give(wire); });
  for (int run = 0; run < 10'000; ++run) executor.run(step.graph, schedule);
  EXPECT_EQ(step.computed, 10'000 * computed_per_step);
  EXPECT_EQ(step.sent.load(), 10'000 * Step::buckets);
  EXPECT_TRUE(step.all_sent);
}

TEST(ExecutorStress, ChainsOfWiresAcrossThreads) {
  // Each wire is started by the completion of the one before it, on whichever thread that was.
  Recorder recorder;
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  Carriers carriers(executor, 2);
  Graph graph;
  std::atomic<int> last{-1};
  std::atomic<bool> in_order{true};
  std::vector<TaskId> after;
  for (int i = 0; i < 20; ++i) {
    after = {graph.add(
        TaskKind::reduce, i, Lane::wire,
        [&, i] {
          if (last.exchange(i) != i - 1) in_order = false;
          carriers.give(static_cast<TaskId>(i));
        },
        after)};
  }
  graph.add(TaskKind::norm, 0, Lane::compute, [&] { last = -1; }, after);
  for (int run = 0; run < 500; ++run) executor.run(graph, schedule);
  EXPECT_TRUE(in_order.load());
}

TEST(ExecutorStress, ErrorsInManyRunsNeverLeaveAWireBehind) {
  Recorder recorder;
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  std::atomic<int> started{0};
  Carriers carriers(executor, 2);
  Graph graph;
  for (TaskId i = 0; i < 4; ++i) {
    graph.add(TaskKind::reduce, 0, Lane::wire, [&, i] {
      ++started;
      carriers.give(i);
    });
  }
  graph.add(TaskKind::forward, 0, Lane::compute, [] { throw std::runtime_error("every time"); });
  for (int run = 0; run < 2'000; ++run) EXPECT_THROW(executor.run(graph, schedule), std::runtime_error);
  EXPECT_EQ(started.load(), 4 * 2'000);
}

TEST(ExecutorStress, NothingIsAllocatedOnceWarm) {
  BoardSlot slot;
  Recorder recorder(&slot);
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  Step step(executor, [&](TaskId wire) { executor.complete(wire); });
  executor.run(step.graph, schedule);
  counting = true;
  delete new int;  // the counter itself works
  const auto counted_one = allocations;
  for (int run = 0; run < 100; ++run) executor.run(step.graph, schedule);
  counting = false;
  EXPECT_EQ(counted_one, 1);
  EXPECT_EQ(allocations - counted_one, 0);
}

TEST(ExecutorStress, CostOfAnEmptyTask) {
  BoardSlot slot;
  Recorder recorder(&slot);
  InOrder schedule;
  RealClock clock;
  Executor executor(recorder, clock);
  Graph graph;
  constexpr int tasks = 200;
  std::vector<TaskId> after;
  for (int i = 0; i < tasks; ++i) after = {graph.add(TaskKind::receive, i, Lane::compute, [] {}, after)};
  double best_s = 1e9;
  for (int run = 0; run < 200; ++run) {
    const double begin = clock.now_s();
    executor.run(graph, schedule);
    best_s = std::min(best_s, clock.now_s() - begin);
  }
  std::printf("an empty task costs %.0f ns\n", best_s / tasks * 1e9);
}

}  // namespace
}  // namespace trireme
