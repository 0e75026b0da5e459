#include "trireme/observe/recorder.h"

namespace trireme {

void Recorder::compute(const char* what, int64_t index) {
  if (!slot_) return;
  slot_->compute.write(what, step(), index);
  slot_->progress.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::communicate(const char* what, int64_t sequence) {
  if (!slot_) return;
  slot_->communication.write(what, step(), sequence);
  slot_->collectives.fetch_add(1, std::memory_order_relaxed);
  slot_->progress.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::still_working() {
  if (slot_) slot_->alive.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::set_step(int64_t step) {
  step_.store(step, std::memory_order_relaxed);
  if (!slot_) return;
  slot_->collectives.store(0, std::memory_order_relaxed);
  slot_->step.store(step, std::memory_order_relaxed);
}

void Recorder::add_sink(std::unique_ptr<MetricSink> sink) {
  std::lock_guard lock(sinks_mutex_);
  if (sink) sinks_.push_back(std::move(sink));
}

void Recorder::report(const StepReport& report) {
  std::lock_guard lock(sinks_mutex_);
  for (auto& sink : sinks_) sink->step(report);
}

void Recorder::event(const std::string& name, const nlohmann::json& fields) {
  std::lock_guard lock(sinks_mutex_);
  for (auto& sink : sinks_) sink->event(name, fields);
}

void Recorder::finish() {
  std::lock_guard lock(sinks_mutex_);
  for (auto& sink : sinks_) sink->finish();
}

}  // namespace trireme
