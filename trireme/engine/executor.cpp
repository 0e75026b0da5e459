#include "trireme/engine/executor.h"

#include "trireme/base/error.h"

namespace trireme {

TaskId Graph::add(TaskKind kind, int32_t index, Lane lane, std::function<void()> work, const std::vector<TaskId>& after,
                  int32_t extra_signals) {
  const auto id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back({kind, lane, index, extra_signals, std::move(work), {}});
  for (TaskId before : after) add_dependency(id, before);
  return id;
}

void Graph::add_dependency(TaskId task, TaskId after) {
  if (after >= tasks_.size() || task >= tasks_.size() || after == task)
    fail("task {} cannot wait for task {}", task, after);
  tasks_[after].successors.push_back(task);
  ++tasks_[task].waits;
}

Executor::Executor(Recorder& recorder, const Schedule& schedule, const Clock& clock, Helper* helper)
    : recorder_(recorder), schedule_(schedule), clock_(clock), helper_(helper) {}

void Executor::run(Graph& graph) {
  const size_t count = graph.tasks_.size();
  if (waits_capacity_ < count) {
    waits_ = std::make_unique<std::atomic<int32_t>[]>(count);
    waits_capacity_ = count;
    ready_.reserve(count);
    ready_ids_.reserve(count);
  }
  graph_ = &graph;
  idle_s_ = 0;
  error_ = nullptr;
  remaining_ = count;
  wires_in_flight_ = 0;
  ready_.clear();
  ready_ids_.clear();
  // One signal more than each task waits for, given when all counters stand: a task may not run before that.
  for (size_t i = 0; i < count; ++i) waits_[i].store(graph.tasks_[i].waits + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) signal(static_cast<TaskId>(i));

  std::unique_lock lock(mutex_);
  while (remaining_ > 0) {
    if (error_) {
      // What is on the wire writes into buffers that we own: wait for it before leaving.
      if (wires_in_flight_ == 0) break;
      changed_.wait(lock);
      continue;
    }
    if (!ready_.empty()) {
      const size_t place = schedule_.choose(ready_);
      const TaskId task = ready_ids_[place];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(place));
      ready_ids_.erase(ready_ids_.begin() + static_cast<std::ptrdiff_t>(place));
      lock.unlock();
      run_compute(task);
      lock.lock();
      continue;
    }
    if (wires_in_flight_ == 0) {
      fail("the step cannot end: {} tasks wait for signals that nothing is left to give", remaining_);
    }
    const double since = clock_.now_s();
    lock.unlock();
    const bool helped = helper_ && helper_->help();
    lock.lock();
    if (!helped && ready_.empty() && remaining_ > 0 && !error_ && wires_in_flight_ > 0) changed_.wait(lock);
    idle_s_ += clock_.now_s() - since;
  }
  if (error_) std::rethrow_exception(error_);
}

void Executor::run_compute(TaskId task) {
  auto& entry = graph_->tasks_[task];
  recorder_.compute(name(entry.kind), entry.index);
  try {
    entry.work();
  } catch (...) {
    failed(std::current_exception());
    return;
  }
  finished(task);
}

void Executor::start_wire(TaskId task) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    ++wires_in_flight_;
  }
  try {
    graph_->tasks_[task].work();
  } catch (...) {
    complete(task, std::current_exception());
  }
}

void Executor::signal(TaskId task) {
  if (waits_[task].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto& entry = graph_->tasks_[task];
  if (entry.lane == Lane::wire) {
    start_wire(task);
    return;
  }
  std::lock_guard lock(mutex_);
  ready_.push_back({entry.kind, entry.index, task});
  ready_ids_.push_back(task);
  changed_.notify_one();
}

void Executor::complete(TaskId task, std::exception_ptr error) {
  if (error) failed(error);
  if (!error) {
    // Successors first: the step must not look finished, nor stuck, while they are being made ready.
    for (TaskId next : graph_->tasks_[task].successors) signal(next);
  }
  std::lock_guard lock(mutex_);
  --wires_in_flight_;
  if (!error) --remaining_;
  changed_.notify_one();
}

void Executor::finished(TaskId task) {
  for (TaskId next : graph_->tasks_[task].successors) signal(next);
  std::lock_guard lock(mutex_);
  --remaining_;
}

void Executor::failed(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  changed_.notify_one();
}

}  // namespace trireme
