// Sums tensors over ranks in an order that all ranks agree on, the most urgent first. Tensors become ready in the same
// order everywhere, the more urgent ones later, as gradients do: those of the first layers come last and are needed
// first. So what is ready on all ranks is known by one number, their smallest count, and whichever tensor is then
// chosen by a fixed rule is the same on all of them. A round may carry so many bytes (its credit); what has become
// ready meanwhile overtakes what is left of the others (P3, ByteScheduler).
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "trireme/comm/communicator.h"

namespace trireme {

// What of which item a round carries: elements [begin, end).
struct OrderedPiece {
  size_t item;
  int64_t begin, end;
};

// The pieces of a round: of the first `ready` items, `sent` elements of each of which have gone, the last ones first.
// At least one element, at most `credit_bytes`.
std::vector<OrderedPiece> next_pieces(const std::vector<at::Tensor>& items, const std::vector<int64_t>& sent,
                                      size_t ready, int64_t credit_bytes);

class AgreedOrder {
 public:
  // `last_summed`: called once the last item has become ready and been summed, or will not be.
  AgreedOrder(Communicator& communicator, Group group, std::vector<at::Tensor> items, int64_t credit_bytes,
              Communicator::Done last_summed);
  ~AgreedOrder();  // waits for the calls that are under way

  // None is ready any more; all have been awaited.
  void begin();
  // The first `count` of them are. May be called from anywhere; never waits.
  void ready(size_t count);
  // Returns when an item has been summed.
  void await(size_t item);

 private:
  void pump();  // the mutex is held
  void agreed();
  void tell(std::unique_lock<std::mutex>& lock);  // of the last item, if it is time
  void call(const at::Tensor& tensor, ReduceOp op, const char* name, std::function<void()> then);

  Communicator& communicator_;
  const Group group_;
  const std::vector<at::Tensor> items_;
  const int64_t credit_bytes_;
  const Communicator::Done last_summed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> lengths_, sent_, summed_;  // elements of each
  size_t ready_ = 0;
  bool busy_ = false;  // a round is under way
  int calls_ = 0;      // made, and not ended
  at::Tensor count_;   // what the ranks agree on
  std::exception_ptr failure_;
  bool told_ = false;  // of the last item
};

}  // namespace trireme
