#include "trireme/data/order.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {

SampleOrder::SampleOrder(int64_t samples, int64_t batch, uint64_t seed)
    : samples_(samples), batch_(batch), seed_(seed) {
  if (samples < 1) refuse("there are no samples to put in order");
  if (batch < 1) refuse("a batch needs at least 1 sample, not {}", batch);
}

void SampleOrder::fill(int64_t step, int64_t first, int64_t count, std::vector<int64_t>& out) const {
  if (step < 0 || first < 0 || count < 0 || first > batch_ - count) {
    fail("places [{}, {}) of step {} are not all inside a batch of {}", first, first + count, step, batch_);
  }
  out.resize(static_cast<size_t>(count));
  const Key key = Key{seed_}.with("order");
  auto place = out.begin();
  for (int64_t next = position(step) + first; place != out.end();) {
    const int64_t epoch = next / samples_, start = next % samples_;
    const int64_t run = std::min<int64_t>(samples_ - start, out.end() - place);  // places before the epoch ends
    const Permutation permutation(static_cast<uint64_t>(samples_), key.with(static_cast<uint64_t>(epoch)));
    for (int64_t i = 0; i < run; ++i) *place++ = static_cast<int64_t>(permutation(static_cast<uint64_t>(start + i)));
    next += run;
  }
}

}  // namespace trireme
