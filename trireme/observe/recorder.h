// Everything a rank does passes here: each operation as it begins, each step's report, each byte by owner.
// From the Recorder come the board's crash record, the progress line, metrics.jsonl and the TensorBoard files.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/observe/board.h"
#include "trireme/observe/ledger.h"
#include "trireme/observe/step_report.h"
#include "trireme/observe/trace.h"

namespace trireme {

class Recorder {
 public:
  explicit Recorder(BoardSlot* slot = nullptr) : slot_(slot) {}

  // The compute thread begins an operation, the communication thread begins a message.
  void compute(const char* what, int64_t index = -1);
  void communicate(const char* what, int64_t sequence);
  // One long operation, such as waiting for a slow disk, goes on: not a hang.
  void still_working();
  void set_step(int64_t step);
  int64_t step() const { return step_.load(std::memory_order_relaxed); }

  void sent(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

  void add_sink(std::unique_ptr<MetricSink> sink);
  void report(const StepReport& report);
  void event(const std::string& name, const nlohmann::json& fields);
  void finish();

  Ledger& memory() { return memory_; }

  // The trace that is being recorded now, or null. Begun and ended between steps.
  Trace* trace() const { return trace_.load(std::memory_order_acquire); }
  void set_trace(Trace* trace) { trace_.store(trace, std::memory_order_release); }

 private:
  BoardSlot* slot_;
  std::atomic<int64_t> step_{-1};
  std::atomic<int64_t> sent_bytes_{0};
  Ledger memory_;
  std::atomic<Trace*> trace_{nullptr};
  std::mutex sinks_mutex_;  // events come from the saving thread too
  std::vector<std::unique_ptr<MetricSink>> sinks_;
};

}  // namespace trireme
