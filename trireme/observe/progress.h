// How a run is going, on standard error and in the run's log.txt. A terminal gets one live line, redrawn in place:
//
//   step 120/500  loss 2.1234  grad_norm 0.91  memory 0.31 GB  tps 12,345  eta 2 min 5 s  [=====>                ]
//
// Anything else (a file, a pipe, a batch job's log) gets the same words as plain lines, every so many steps; so does
// log.txt, whatever is shown.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/observe/step_report.h"

namespace trireme {

class Progress final : public MetricSink {
 public:
  // A plain line every so many steps, and for the first and the last; a quiet one writes to log.txt alone.
  explicit Progress(int64_t every, bool quiet = false);
  ~Progress() override { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepReport& report) override;
  void event(const std::string&, const nlohmann::json&) override {}  // these reach the terminal as notes of log::
  void finish() override;  // leaves the last step's line, whether or not it was its turn

 private:
  void write_plain();

  int64_t every_;
  bool quiet_, live_;
  std::optional<StepReport> last_;  // with the newest eval_loss, which stays in sight until the next one
  bool last_is_written_ = false;
  int64_t reports_ = 0;
  double average_step_s_ = 0;
};

}  // namespace trireme
