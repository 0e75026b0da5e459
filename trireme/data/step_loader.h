// Feeds one rank: while a step runs, threads build the microbatches of the next ones, each a step of its own. What it
// hands out is exactly what reading the dataset directly would give; only the waiting is gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/order.h"

namespace trireme {

struct Microbatch {
  at::Tensor inputs;
  at::Tensor targets;
  at::Tensor starts;     // see Batch
  at::Tensor positions;  // int64 [b]: step·batch + place, who a sample is to dropout, whichever rank it lands on
};

struct LoadedStep {
  int64_t step = 0;
  int64_t learnt_targets = 0;            // of the whole step, over all ranks
  std::vector<Microbatch> microbatches;  // as many as pieces, of no samples where a piece is empty
};

struct StepLoaderOptions {
  int threads = 1;      // so many steps are built ahead of the one in use
  bool pinned = false;  // tensors lie where a card can copy them from by itself
  bool reads = true;    // false: who the samples are is enough, nobody looks at them here
};

class StepLoader {
 public:
  // `dataset` must outlive the loader. `pieces` are the microbatches of this rank's share.
  StepLoader(const Dataset& dataset, SampleOrder order, std::vector<Share> pieces, int64_t first_step,
             const StepLoaderOptions& options = {});

  // The steps from `first_step` on, one a call. What goes wrong on the thread is thrown here, and again at every
  // further call: there is no step after a failed one.
  LoadedStep next();

 private:
  // A step that is built, or why it could not be.
  struct Slot {
    std::optional<LoadedStep> step;
    std::exception_ptr failure;
  };

  LoadedStep load(int64_t step) const;
  Slot attempt(int64_t step) const;
  void build(const std::stop_token& stop);
  Slot& slot_of(int64_t step) { return slots_[static_cast<size_t>(step) % slots_.size()]; }

  const Dataset& dataset_;
  const SampleOrder order_;
  const std::vector<Share> pieces_;
  const StepLoaderOptions options_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;            // one a thread
  int64_t taken_, begun_;              // the next step to be handed out, and the next to be built
  bool failed_ = false;                // nothing is begun any more
  std::vector<std::jthread> threads_;  // last: they are stopped and joined before anything that they use is gone
};

}  // namespace trireme
