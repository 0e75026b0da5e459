// Counts the memory of all tensors of this process, on the host and on its cards, as it is allocated and given back: it
// is charged to the owner for whom the thread works that allocates it (observe/ledger.h), whoever gives it back.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "trireme/observe/ledger.h"

namespace trireme {

// From the first call on.
void count_memory();

// An OwnerScope that also reaches the threads of a card on which autograd runs the backward passes that are begun here.
class PassScope {
 public:
  explicit PassScope(Owner owner);

 private:
  const OwnerScope here_;
  const c10::DebugInfoGuard there_;
};

// For whom the calling thread allocates, if it is one of autograd's, and otherwise holding().
Holding holding_of_pass();

// From now on a tensor's memory belongs to another owner, of the same rank.
void hand_over(const at::Tensor& tensor, Owner to);

// A tensor with memory that others made: it belongs to the calling thread's owner, and is charged to it if no allocator
// has counted it.
at::Tensor taken_over(const at::Tensor& tensor);

}  // namespace trireme
