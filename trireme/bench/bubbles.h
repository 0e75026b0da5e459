// The bubble of every schedule that waits less than 1f1b beside that of 1f1b: the time in which stages have nothing to
// do, in parts of the time in which they work, as the formulas have it ((p-1)/m of GPipe). Stages whose cores are
// unequally fast wait for the slowest under any schedule, so each line has a floor: the bubble if the stage with the
// most to do in each step never waited. (A step that drains takes at least that long; in a pipeline that never drains
// stages may work a few microbatches ahead, so there it is near.)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/bench/peer.h"
#include "trireme/observe/bench_line.h"

namespace trireme {

// A repeat runs 1f1b and each of the others once, by `run`, whose settings are those that choose the schedule.
std::vector<BenchLine> measure_bubbles(int stages, int repeats,
                                       const std::function<Measured(const std::vector<std::string>& settings)>& run);

}  // namespace trireme
