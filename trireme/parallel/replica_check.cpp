#include "trireme/parallel/replica_check.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

// The sum of the elements' bits as whole numbers: no order of adding changes it, one bit that differs always does, and
// several only by chance do not.
at::Tensor sum_of_bits(const at::Tensor& tensor) {
  const auto bits = tensor.element_size() == 8 ? at::kLong : tensor.element_size() == 4 ? at::kInt : at::kShort;
  return tensor.view(bits).sum(at::kLong);
}

}  // namespace

std::vector<int> differing_replicas(const ParameterStore& store, Communicator& communicator, Group group) {
  if (store.buckets().empty()) return {};  // nothing here is trained
  std::vector<at::Tensor> sums;
  for (const auto& bucket : store.buckets()) sums.push_back(sum_of_bits(bucket.master));
  const auto mine = at::stack(sums).cpu();
  const int replicas = communicator.size(group);
  const auto all = at::empty({replicas, mine.numel()}, at::kLong);
  communicator.now([&] { return communicator.all_gather(mine, all, "compare replicas", {}, group); });
  std::vector<int> agreeing(static_cast<size_t>(replicas), 0);
  for (int a = 0; a < replicas; ++a) {
    for (int b = 0; b < replicas; ++b) agreeing[static_cast<size_t>(a)] += at::equal(all[a], all[b]) ? 1 : 0;
  }
  const int most = *std::max_element(agreeing.begin(), agreeing.end());
  const bool majority = 2 * most > replicas;
  std::vector<int> differing;
  for (int replica = 0; replica < replicas && most < replicas; ++replica) {
    if (!majority || agreeing[static_cast<size_t>(replica)] < most) differing.push_back(replica);
  }
  return differing;
}

}  // namespace trireme
