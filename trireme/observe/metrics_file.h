// metrics.jsonl of a run's folder: one JSON object a line, for programs to read.
//
//   {"format":"trireme-metrics","version":1}
//   {"step":1,"steps":500,"loss":4.17,"grad_norm":1.2,"lr":0.0003,"tokens_per_s":9120.0,…,"memory":{…}}
//   {"event":"checkpoint","step":1,"path":"checkpoints/step-1"}
//
// JSON has no NaN: a number that is not finite is written as null, and its key listed under "nonfinite".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trireme/observe/append_file.h"
#include "trireme/observe/board.h"
#include "trireme/observe/step_report.h"

namespace trireme {

// The version of the format: it grows when a line's field is renamed, removed or given another meaning.
inline constexpr int64_t metrics_version = 1;

// Refuses a file that a run cannot continue: of another kind, or of a newer version. Nothing is wrong with no file.
void check_metrics_file(const std::filesystem::path& path);

class MetricsFile final : public MetricSink {
 public:
  // A run that resumes from a checkpoint of step N passes N: what the file says of later steps is dropped, as those
  // steps are about to be done again. Without a step the file starts afresh.
  explicit MetricsFile(const std::filesystem::path& path, int64_t resume_step = -1);

  void step(const StepReport& report) override;
  void event(const std::string& name, const nlohmann::json& fields) override;
  void finish() override {}  // every line was written when it came

 private:
  void write_line(nlohmann::ordered_json line);

  bool has_header_;
  AppendFile file_;
  const int64_t opened_ns_ = monotonic_ns();
  int64_t last_step_;  // where an event that names no step belongs
};

}  // namespace trireme
