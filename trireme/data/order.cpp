#include "trireme/data/order.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme {

Share share_of(int64_t batch, int rank, int ranks) {
  if (rank < 0 || rank >= ranks) fail("rank {} of {} has no share of a batch", rank, ranks);
  const int64_t first = batch * rank / ranks;
  const int64_t end = batch * (rank + 1) / ranks;
  return {first, end - first};
}

std::vector<Share> microbatches(Share share, int64_t microbatch) {
  if (microbatch < 0) refuse("a microbatch of {} samples is not possible", microbatch);
  const int64_t most = microbatch == 0 ? share.count : microbatch;
  const int64_t end = share.first + share.count;
  std::vector<Share> pieces;
  for (int64_t first = share.first; first < end; first += most) {
    pieces.push_back({first, std::min(most, end - first)});
  }
  return pieces;
}

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
