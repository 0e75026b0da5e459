// How a stage's gradients lie in buckets, each of which is reduced at once, and who changes a bucket's parameters. The
// parameter store makes its buckets of this, and the graph of a step its tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trireme/spec/parts.h"

namespace trireme {

// A parameter that is to be put into a bucket.
struct BucketItem {
  int64_t elements = 0;
  bool trained = true;  // the others are in no bucket
  bool decays = true;
  int tie = -1;
  bool owned = true;
};

struct BucketShape {
  int64_t elements = 0;  // whole cache lines for each parameter
  int64_t decaying = 0;  // the first `decaying` elements are subject to weight decay
  int tie = -1;          // of its parameters: other stages hold them too
  bool owned = true;
};

struct BucketLayout : BucketShape {
  struct Place {
    size_t item = 0;
    int64_t offset = 0;  // elements from the start of the bucket
  };
  std::vector<Place> places;
};

// Buckets of at most so many elements, of items in the order of their first use. They are filled in the order in which
// gradients become ready, the reverse; what other stages hold too comes last, by tie, so that all ranks reduce in one
// agreed order.
std::vector<BucketLayout> lay_out_buckets(std::span<const BucketItem> items, int64_t largest);

// Those of a stage.
std::vector<BucketLayout> buckets_of(const Plan& plan, const LayerTable& table, int stage);

// For each bucket the rank of its group that is its root: the one that has least to update so far. `ranks` says how many
// a group has, by tie, -1 being the stage's own replicas. All ranks of a group see the same buckets of it.
std::vector<int> bucket_roots(std::span<const BucketShape> buckets, const std::function<int(int tie)>& ranks);

// The order in which roots send their buckets on: what several stages share first, in an order that all of them know;
// then what the forward pass needs first, which is what came last in the backward pass.
std::vector<size_t> spread_order(std::span<const BucketShape> buckets);

}  // namespace trireme
