#include "trireme/observe/stragglers.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/statistics.h"

namespace trireme {

std::optional<AwaitedRank> awaited_rank(const std::vector<double>& busy_s, int replicas) {
  std::optional<AwaitedRank> found;
  const auto count = static_cast<size_t>(replicas);
  for (size_t first = 0; count > 1 && first + count <= busy_s.size(); first += count) {
    double sum = 0;
    size_t longest = first;
    for (size_t rank = first; rank < first + count; ++rank) {
      sum += busy_s[rank];
      if (busy_s[rank] > busy_s[longest]) longest = rank;
    }
    const double others = (sum - busy_s[longest]) / static_cast<double>(count - 1), waited = busy_s[longest] - others;
    if (!found || waited > found->seconds) found = {static_cast<int>(longest), waited};
  }
  return found;
}

std::optional<Straggler> Stragglers::step(const std::vector<double>& busy_s) {
  if (replicas_ < 2 || busy_s.empty()) return std::nullopt;
  seen_.resize(busy_s.size());
  for (size_t rank = 0; rank < busy_s.size(); ++rank) seen_[rank].push_back(busy_s[rank]);
  if (seen_[0].size() < window) return std::nullopt;
  auto found = judge();
  for (auto& times : seen_) times.clear();
  const bool again = found && found->rank == slow_before_;
  slow_before_ = found ? found->rank : -1;
  if (quiet_ > 0) {
    --quiet_;
    return std::nullopt;
  }
  if (!again) return std::nullopt;
  quiet_ = pause_;
  pause_ *= 2;
  return found;
}

std::optional<Straggler> Stragglers::judge() const {
  std::optional<Straggler> worst;
  for (size_t first = 0; first + replicas_ <= seen_.size(); first += replicas_) {
    std::vector<double> medians, distances;
    for (size_t rank = first; rank < first + replicas_; ++rank) {
      medians.push_back(median(seen_[rank]));
      for (const double one : seen_[rank]) distances.push_back(std::abs(one - medians.back()));
    }
    const double spread = median(distances);
    const auto slowest = std::max_element(medians.begin(), medians.end());
    std::vector<double> others(medians.begin(), slowest);
    others.insert(others.end(), slowest + 1, medians.end());
    const Straggler one{static_cast<int>(first) + static_cast<int>(slowest - medians.begin()), *slowest, median(others),
                        medians};
    if (one.others_s <= 0 || one.busy_s <= clear_factor * one.others_s) continue;
    if (one.busy_s <= one.others_s + clear_spreads * spread) continue;
    if (!worst || one.factor() > worst->factor()) worst = one;
  }
  return worst;
}

}  // namespace trireme
