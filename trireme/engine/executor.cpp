#include "trireme/engine/executor.h"

#include "trireme/base/error.h"

namespace trireme {

namespace {

// Who holds what a task allocates.
Owner owner_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::load: return Owner::samples;
    case TaskKind::forward: return Owner::activations;
    case TaskKind::receive:
    case TaskKind::reduce: return Owner::messages;
    default: return Owner::working;
  }
}

}  // namespace

TaskId Graph::add(TaskKind kind, int32_t index, Lane lane, std::function<void()> work, const std::vector<TaskId>& after,
                  int32_t extra_signals, int32_t chunk) {
  const auto id = static_cast<TaskId>(tasks_.size());
  tasks_.push_back({kind, lane, index, chunk, extra_signals, std::move(work), {}});
  for (TaskId before : after) add_dependency(id, before);
  return id;
}

void Graph::add_dependency(TaskId task, TaskId after) {
  if (after >= tasks_.size() || task >= tasks_.size() || after == task)
    fail("task {} cannot wait for task {}", task, after);
  tasks_[after].successors.push_back(task);
  ++tasks_[task].waits;
}

Executor::Executor(Recorder& recorder, const Clock& clock, Helper* helper)
    : recorder_(recorder), clock_(clock), helper_(helper) {}

void Executor::run(Graph& graph, const Schedule& schedule) {
  begin(graph, schedule);
  finish();
}

void Executor::finish() {
  while (true) {
    switch (run_one()) {
      case Progress::ran: break;
      case Progress::waiting: wait_for_work(); break;
      case Progress::done: return;
    }
  }
}

void Executor::begin(Graph& graph, const Schedule& schedule) {
  const size_t count = graph.tasks_.size();
  if (waits_capacity_ < count) {
    waits_ = std::make_unique<std::atomic<int32_t>[]>(count);
    waits_capacity_ = count;
    ready_.reserve(count);
    ready_ids_.reserve(count);
  }
  graph_ = &graph;
  schedule_ = &schedule;
  state_ = {};
  idle_ = {};
  error_ = nullptr;
  remaining_ = count;
  wires_in_flight_ = 0;
  ready_.clear();
  ready_ids_.clear();
  // One signal more than each task waits for, given when all counters stand: a task may not run before that.
  for (size_t i = 0; i < count; ++i) waits_[i].store(graph.tasks_[i].waits + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) signal(static_cast<TaskId>(i));
}

Executor::Progress Executor::run_one() {
  std::unique_lock lock(mutex_);
  if (error_) {
    // What is on the wire writes into buffers that we own: wait for it before leaving.
    if (wires_in_flight_ > 0) return Progress::waiting;
    std::rethrow_exception(error_);
  }
  if (remaining_ == 0) return Progress::done;
  const size_t place = ready_.empty() ? Schedule::none : schedule_->choose(ready_, state_);
  if (place == Schedule::none) {
    if (wires_in_flight_ > 0) return Progress::waiting;
    fail("the step cannot end: {} for signals that nothing is left to give",
         remaining_ == 1 ? "1 task waits" : fmt::format("{} tasks wait", remaining_));
  }
  const TaskId task = ready_ids_[place];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(place));
  ready_ids_.erase(ready_ids_.begin() + static_cast<std::ptrdiff_t>(place));
  switch (graph_->tasks_[task].kind) {
    case TaskKind::forward: ++state_.forwards; break;
    case TaskKind::backward: ++state_.backwards; break;
    case TaskKind::weights: ++state_.weights; break;
    default: break;
  }
  lock.unlock();
  run_compute(task);
  return Progress::ran;
}

// Sleeps until something has changed, or carries a message itself.
void Executor::wait_for_work() {
  const double since = clock_.now_s();
  auto* trace = recorder_.trace();
  const int64_t begun = trace ? monotonic_ns() : 0;
  const TaskKind awaited = schedule_->awaited(state_);
  const bool helped = helper_ && helper_->help(/*may_be_kept=*/awaited == TaskKind::reduce);
  std::unique_lock lock(mutex_);
  const auto nothing_to_do = [&] {
    if (error_) return wires_in_flight_ > 0;
    return remaining_ > 0 && wires_in_flight_ > 0 &&
           (ready_.empty() || schedule_->choose(ready_, state_) == Schedule::none);
  };
  if (!helped && nothing_to_do()) changed_.wait(lock);
  const double seconds = clock_.now_s() - since;
  switch (awaited) {
    case TaskKind::forward: idle_.forward_s += seconds; break;
    case TaskKind::weights:
    case TaskKind::backward: idle_.backward_s += seconds; break;
    default: idle_.reduce_s += seconds; break;
  }
  if (trace) {
    trace->add({.track = TraceTrack::waiting,
                .name = name(awaited),
                .step = recorder_.step(),
                .begin_ns = begun,
                .end_ns = monotonic_ns()});
  }
}

void Executor::run_compute(TaskId task) {
  auto& entry = graph_->tasks_[task];
  const OwnerScope scope(owner_of(entry.kind));
  if (before_task_) before_task_();
  recorder_.compute(name(entry.kind), entry.index);
  auto* trace = recorder_.trace();
  const int64_t begun = trace ? monotonic_ns() : 0;
  try {
    entry.work();
  } catch (...) {
    failed(std::current_exception());
    return;
  }
  if (trace) {
    trace->add({.name = name(entry.kind),
                .index = entry.index,
                .chunk = entry.chunk,
                .step = recorder_.step(),
                .begin_ns = begun,
                .end_ns = monotonic_ns()});
  }
  finished(task);
}

void Executor::start_wire(TaskId task) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    ++wires_in_flight_;
  }
  const OwnerScope scope(owner_of(graph_->tasks_[task].kind));
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
  ready_.push_back({entry.kind, entry.index, task, entry.chunk});
  ready_ids_.push_back(task);
  changed_.notify_one();
}

void Executor::complete(TaskId task, std::exception_ptr error) {
  if (error) failed(error);
  if (!error) {
    if (auto* trace = recorder_.trace()) {
      const auto& entry = graph_->tasks_[task];
      const int64_t now = monotonic_ns();
      trace->add({.track = TraceTrack::arrivals,
                  .name = name(entry.kind),
                  .index = entry.index,
                  .chunk = entry.chunk,
                  .step = recorder_.step(),
                  .begin_ns = now,
                  .end_ns = now});
    }
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
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
    changed_.notify_one();
  }
  if (helper_) helper_->cancel(error);
}

}  // namespace trireme
