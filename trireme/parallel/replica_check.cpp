#include "trireme/parallel/replica_check.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// The sum of the elements' bits as whole numbers: no order of adding changes it, one bit that differs always does, and
// several only by chance do not.
at::Tensor sum_of_bits(const at::Tensor& tensor) {
  const auto bits = tensor.element_size() == 8 ? at::kLong : tensor.element_size() == 4 ? at::kInt : at::kShort;
  return tensor.view(bits).sum(at::kLong);
}

}  // namespace

void check_same_parameters(const ParameterList& parameters, Communicator& communicator) {
  const int ranks = communicator.size();
  // How many there are, first: ranks that list others could not even compare them.
  const auto count = at::full({1}, static_cast<int64_t>(parameters.size()), at::kLong);
  const auto counts = at::empty({ranks}, at::kLong);
  communicator.now([&] { return communicator.all_gather(count, counts, "count parameters"); });
  for (int rank = 1; rank < ranks; ++rank) {
    if (counts[rank].item<int64_t>() != counts[0].item<int64_t>())
      refuse("rank {} has {} parameters, rank 0 has {}: all ranks must train the same model", rank,
             counts[rank].item<int64_t>(), counts[0].item<int64_t>());
  }
  std::vector<at::Tensor> sums;
  for (const auto& parameter : parameters)
    sums.push_back(sum_of_bits(parameter->value.detach().contiguous().view({-1})) + parameter->value.numel());
  const auto mine = at::stack(sums).cpu();
  const auto all = at::empty({ranks, mine.numel()}, at::kLong);
  communicator.now([&] { return communicator.all_gather(mine, all, "compare parameters"); });
  std::vector<std::string> differing;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto column = all.select(1, static_cast<int64_t>(i));
    if (!column.eq(column[0]).all().item<bool>()) differing.push_back(parameters[i]->name);
  }
  if (differing.empty()) return;
  const size_t shown = std::min<size_t>(differing.size(), 5);
  refuse(
      "{} of {} parameters differ between the ranks: {}{}. Seed all ranks alike before the model is made "
      "(torch::manual_seed), or load the same file on all of them",
      differing.size(), parameters.size(), fmt::join(differing.begin(), differing.begin() + shown, ", "),
      shown < differing.size() ? ", ..." : "");
}

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
