// Who waits for whom. The replicas of a stage do the same work, each on its share of the batch, and then wait for each
// other: the one that was busy longest is the one that the others waited for. Stages differ by design, so ranks are
// compared inside a stage only. Ranks are numbered as a mesh numbers them: the replicas of a stage behind each other.
#pragma once

#include <optional>
#include <vector>

#include "trireme/observe/step_report.h"

namespace trireme {

// The rank that the others of its stage waited for in a step, and how long on average; where several stages have one,
// that for which it was longest. Nothing without other replicas.
std::optional<AwaitedRank> awaited_rank(const std::vector<double>& busy_s, int replicas);

// A rank that keeps the others of its stage waiting step after step.
struct Straggler {
  int rank = 0;
  double busy_s = 0, others_s = 0;  // medians: its own, and of the other ranks of its stage
  std::vector<double> stage_s;      // medians of all ranks of its stage, by replica

  double factor() const { return busy_s / others_s; }
};

// Judges one window of steps after the other. A rank is slow in a window when the median of its busy times is beyond
// those of the others by a fifth, and by more than what these times scatter: three times their median distance from the
// median. It is a straggler when it is slow in two windows running. Medians, because a step in which something else ran
// on a core says nothing; two windows, because twenty short steps are a moment.
class Stragglers {
 public:
  static constexpr size_t window = 20;  // steps
  static constexpr double clear_factor = 1.2, clear_spreads = 3;

  explicit Stragglers(int replicas) : replicas_(static_cast<size_t>(replicas)) {}

  // Takes a step's busy times, by rank. Names a straggler when there is one and it is time to speak of it: when it is
  // found, and after that more and more rarely.
  std::optional<Straggler> step(const std::vector<double>& busy_s);

 private:
  std::optional<Straggler> judge() const;

  size_t replicas_;
  std::vector<std::vector<double>> seen_;  // by rank: the steps of this window
  int slow_before_ = -1;                   // the rank that was slow in the window before
  int quiet_ = 0, pause_ = 10;             // windows
};

}  // namespace trireme
