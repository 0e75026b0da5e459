// Sums over all replicas that are on their way while the ranks go on: rounds, each with a tensor for every bucket and a
// few totals. Rounds end in the order in which they are begun, which is the same on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "trireme/parallel/bucket_sums.h"
#include "trireme/parallel/loose_sync.h"

namespace trireme {

class SumRounds {
 public:
  struct Slot {
    std::vector<at::Tensor> tensors;  // by bucket
    at::Tensor totals;                // of the host, doubles
    double total(int which) const { return totals.const_data_ptr<double>()[which]; }
  };

  // At most `slots` rounds are between their start and their last use.
  SumRounds(Replica& replica, int64_t slots, int64_t totals, const char* name);

  Slot& slot(int64_t round) { return slots_[static_cast<size_t>(round) % slots_.size()]; }
  // What the round's slot holds is this rank's part.
  void start(int64_t round);
  // Whether the slot holds the sums.
  bool done(int64_t round) const;
  // Calls once, when the round is done, maybe at once; rounds below the first are. One caller at a time.
  void when_done(int64_t round, Communicator::Done call);
  // Returns when the round is done.
  void wait(int64_t round);
  // No round will be done any more: whoever waits for one gets this error.
  void fail(std::exception_ptr error);
  // The rounds that follow begin with this one.
  void restart(int64_t first);

  BucketSums& sums() { return sums_; }

 private:
  void ended(int64_t round, std::exception_ptr error);

  Communicator& communicator_;
  const Group holders_;
  const char* name_;
  BucketSums sums_;
  std::vector<Slot> slots_;
  mutable std::mutex mutex_;
  int64_t done_ = 0;
  std::exception_ptr failure_;
  int64_t awaited_ = 0;
  Communicator::Done waiting_;
};

}  // namespace trireme
