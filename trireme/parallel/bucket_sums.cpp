#include "trireme/parallel/bucket_sums.h"

namespace trireme {

BucketSums::BucketSums(const SyncConfig&, const ParameterStore&, Communicator& communicator, std::vector<Group> groups)
    : communicator_(communicator), groups_(std::move(groups)) {}

void BucketSums::start(size_t bucket, const at::Tensor& tensor, const char* name, Communicator::Done done) {
  communicator_.all_reduce(tensor, ReduceOp::sum, name, std::move(done), groups_[bucket]);
}

}  // namespace trireme
