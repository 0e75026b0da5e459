// How the samples of a batch are dealt over the replicas: equally, or in proportion to weights that say how fast each
// of them is. Who gets which samples changes no number: the loss is the mean over the whole batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

// Places [first, first + count) of a step's global batch.
struct Share {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const Share&) const = default;
};

// Everybody's part of the batch, in order and without gaps. Without weights no replica has more than one place more
// than another. With weights (positive, one a replica) each has its proportion rounded down, and what is left goes to
// those that lost most by that: so nobody is a whole place off, and a larger weight never gets less.
std::vector<Share> deal(int64_t batch, int replicas, const std::vector<double>& weights = {});

// The part of one of them.
Share share_of(int64_t batch, int replica, int replicas, const std::vector<double>& weights = {});

// Refuses weights (parallel.shares) that do not fit the replicas, or leave one of them without a sample.
void check_weights(int64_t batch, int replicas, const std::vector<double>& weights);

// How many samples each should get to be busy equally long, by the seconds that each takes for what it has now. Nothing
// where samples are too coarse for that: the same as now, or none for somebody.
std::vector<int64_t> evened(const std::vector<Share>& shares, const std::vector<double>& seconds);

// A share in pieces of `microbatch` places, the last one smaller where it must be; 0 means in one piece. Empty pieces
// follow until there are `least`: for replicas that must take as many as the others.
std::vector<Share> microbatches(Share share, int64_t microbatch, size_t least = 0);

// The most pieces that any of the shares is cut into.
size_t most_microbatches(const std::vector<Share>& shares, int64_t microbatch);

}  // namespace trireme
