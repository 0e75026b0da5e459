// Feeds one rank: while a step runs, a thread builds the microbatches of the next one. What it hands out is exactly
// what reading the dataset directly would give; only the waiting is gone.
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

class StepLoader {
 public:
  // `dataset` must outlive the loader. `pieces` are the microbatches of this rank's share.
  StepLoader(const Dataset& dataset, SampleOrder order, std::vector<Share> pieces, int64_t first_step);

  // The steps from `first_step` on, one a call. What goes wrong on the thread is thrown here, and again at every
  // further call: there is no step after a failed one.
  LoadedStep next();

 private:
  LoadedStep load(int64_t step) const;
  void prefetch(std::stop_token stop, int64_t first_step);

  const Dataset& dataset_;
  SampleOrder order_;
  std::vector<Share> pieces_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<LoadedStep> ready_;
  std::exception_ptr failure_;
  std::jthread thread_;  // last: it is stopped and joined before anything that it uses is gone
};

}  // namespace trireme
