// Sums of what is laid out like the store's buckets, over the ranks that hold them: by an all-reduce.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/optim/store.h"
#include "trireme/spec/config.h"

namespace trireme {

class BucketSums {
 public:
  BucketSums(const SyncConfig& config, const ParameterStore& store, Communicator& communicator,
             std::vector<Group> groups);

  // Sums a tensor that is laid out like the bucket, in place. The same buckets in the same order on all ranks.
  void start(size_t bucket, const at::Tensor& tensor, const char* name, Communicator::Done done);

 private:
  Communicator& communicator_;
  const std::vector<Group> groups_;  // by bucket
};

}  // namespace trireme
