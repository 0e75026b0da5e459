// BatchNorms of users' modules over the samples of all ranks. A C++ module's forward calls at::batch_norm, which no
// wrapper of the module can see; torch's dispatcher can: while a SharedStatistics lives, every at::batch_norm that runs
// in training on its thread is ours, whichever module called it.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "trireme/nn/layer.h"

namespace trireme {

class SharedStatistics {
 public:
  // `replicas` must live until the backward pass is done. Null: everything stays as it is.
  explicit SharedStatistics(const GatherReplicas* replicas);
  ~SharedStatistics();
  SharedStatistics(const SharedStatistics&) = delete;
  SharedStatistics& operator=(const SharedStatistics&) = delete;

 private:
  const GatherReplicas* before_ = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_;
};

}  // namespace trireme
