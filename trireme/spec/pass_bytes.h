// The bytes that a microbatch's forward and backward pass through some of a model's layers hold. Parameters, their
// gradients and whatever else a rank holds are not among them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/spec/layer.h"
#include "trireme/spec/replay.h"

namespace trireme {

struct PassBytes {
  int64_t input = 0;   // given to the pass
  int64_t kept = 0;    // from the forward pass to the backward pass, without input and output
  int64_t output = 0;  // handed on; 0 where the pass ends with the loss

  // At most during the forward pass, on top of the input.
  int64_t forward_most = 0;
  // At most during the backward pass, on top of input, kept and output. Gradients of input and output are counted.
  int64_t backward_most = 0;
  // On top of the same, at most when a layer had just been computed again.
  int64_t recomputed_most = 0;

  int64_t input_gradient = 0;  // handed back
  int64_t waiting = 0;         // kept after the backward pass for gradients of weights that are computed later
  int64_t weights_most = 0;    // on top of what waits, while these are computed
};

// Passes the layers [begin, end) of a table. The first `recomputed` layers of the model keep their inputs alone. The part
// with the model's last layer computes the loss, and the one with its first gives no gradient of its input.
PassBytes pass_bytes(const LayerTable& table, size_t begin, size_t end, const ReplayConditions& conditions,
                     size_t recomputed = 0);
// The same without the backward pass.
PassBytes forward_bytes(const LayerTable& table, size_t begin, size_t end, const ReplayConditions& conditions,
                        size_t recomputed = 0);

}  // namespace trireme
