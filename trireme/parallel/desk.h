// Where ranks that go their own ways tell how far they are. Each rank sends rank 0 a line after every step, and never
// waits for it; rank 0 adds up, and when something is due (an evaluation, a checkpoint, the end, or somebody wants to
// stop) it calls all ranks to a meeting, to which each comes after the step that it is in. A step of the job is as many
// steps of ranks as there are ranks, whoever takes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "trireme/comm/postbox.h"
#include "trireme/comm/world.h"

namespace trireme {

class Desk {
 public:
  // `due`: whether something is due between two steps of the job, the first of them done.
  Desk(World& world, Postbox& postbox, std::function<bool(int64_t done, int64_t now)> due);

  // All ranks have come, the job has done so many steps, and the ranks as many each as they say from now on.
  void open(int64_t job_step, int64_t own_steps);
  // After a step of this rank; throws where others can be heard no more.
  void tell(int64_t own_steps, double loss, bool wants_stop);
  // Whether there is a meeting to come to.
  bool called() const { return called_.load(); }

  // As far as rank 0 knows; elsewhere what the last meeting said.
  int64_t job_step() const;
  double loss() const;  // the mean of what ranks said last

 private:
  struct Line {
    int64_t steps = 0, begun_at = 0;
    std::optional<double> loss;
  };

  void note(int rank, int64_t steps, double loss, bool wants_stop);
  void call_all();
  int64_t job_step_now() const;  // the mutex is held

  World& world_;
  Postbox& postbox_;
  const std::function<bool(int64_t, int64_t)> due_;
  std::atomic<bool> called_{false};
  mutable std::mutex mutex_;
  std::vector<Line> lines_;  // by rank, on rank 0
  int64_t opened_at_ = 0;    // the job's step at the last meeting
  bool calling_ = false;
  std::exception_ptr failure_;
};

}  // namespace trireme
