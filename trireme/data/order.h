// Which samples a step uses, as a pure function of (seed, step), whatever the number of ranks. The global batches of
// all steps lie end to end; position g = step·batch + place reads sample π_e(g mod samples) in epoch e = g / samples,
// where π_e is a permutation drawn by (seed, e). So every epoch reads every sample once, and a resumed run goes on
// exactly where it stopped with nothing to store but the step.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/spec/share.h"

namespace trireme {

class SampleOrder {
 public:
  SampleOrder(int64_t samples, int64_t batch, uint64_t seed);

  int64_t samples() const { return samples_; }
  int64_t batch() const { return batch_; }

  // The position of a step's first place; steps count from 0.
  int64_t position(int64_t step) const { return step * batch_; }

  // The samples of the step's places [first, first + count). Allocates nothing but `out`.
  void fill(int64_t step, int64_t first, int64_t count, std::vector<int64_t>& out) const;

 private:
  int64_t samples_;
  int64_t batch_;
  uint64_t seed_;
};

}  // namespace trireme
