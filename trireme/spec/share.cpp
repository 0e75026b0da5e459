#include "trireme/spec/share.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/words.h"

namespace trireme {

namespace {

std::vector<Share> equal_shares(int64_t batch, int replicas) {
  std::vector<Share> shares;
  for (int replica = 0; replica < replicas; ++replica) {
    const int64_t first = batch * replica / replicas;
    shares.push_back({first, batch * (replica + 1) / replicas - first});
  }
  return shares;
}

bool all_equal(const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [&](double one) { return one == weights.front(); });
}

// The sum of any weights, however large: in units of the largest.
double sum_of(const std::vector<double>& weights, double largest) {
  double sum = 0;
  for (const double one : weights) sum += one / largest;
  return sum;
}

// Rounded up to two digits: a number to be typed.
double rounded_up(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::ceil(value / unit) * unit;
}

}  // namespace

std::vector<Share> deal(int64_t batch, int replicas, const std::vector<double>& weights) {
  if (!weights.empty() && std::ssize(weights) != replicas) fail("{} weights for {} replicas", weights.size(), replicas);
  if (all_equal(weights)) return equal_shares(batch, replicas);  // also without any
  const double largest = *std::max_element(weights.begin(), weights.end()), sum = sum_of(weights, largest);
  std::vector<int64_t> counts;
  std::vector<double> lost;
  for (const double weight : weights) {
    const double exact = static_cast<double>(batch) * (weight / largest) / sum;
    counts.push_back(static_cast<int64_t>(std::floor(exact)));
    lost.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lost[a] > lost[b]; });
  const int64_t left = batch - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t i = 0; i < left; ++i) ++counts[order[static_cast<size_t>(i) % order.size()]];

  std::vector<Share> shares;
  int64_t first = 0;
  for (const int64_t count : counts) {
    shares.push_back({first, count});
    first += count;
  }
  return shares;
}

Share share_of(int64_t batch, int replica, int replicas, const std::vector<double>& weights) {
  if (replica < 0 || replica >= replicas) fail("rank {} of {} has no share of a batch", replica, replicas);
  return deal(batch, replicas, weights)[static_cast<size_t>(replica)];
}

void check_weights(int64_t batch, int replicas, const std::vector<double>& weights) {
  if (weights.empty()) return;
  const auto shown = fmt::format("parallel.shares = [{}]", fmt::join(weights, ", "));
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) refuse("{}: each must be above 0, and finite", shown);
  }
  if (std::ssize(weights) != replicas) {
    refuse(
        "{} is for {}, but the ranks make {}: give one number for each, or parallel.shares=[] to deal "
        "equally",
        shown, counted(std::ssize(weights), "replica"), replicas);
  }
  const auto shares = deal(batch, replicas, weights);
  const double largest = *std::max_element(weights.begin(), weights.end()), sum = sum_of(weights, largest);
  for (int replica = 0; replica < replicas; ++replica) {
    if (shares[static_cast<size_t>(replica)].count > 0) continue;
    const double mine = weights[static_cast<size_t>(replica)] / largest;
    refuse(
        "{} leaves replica {} without any of the train.batch = {} samples: give it at least {:g} there, or raise "
        "train.batch to {:.15g}",
        shown, replica, batch, rounded_up((sum - mine) / static_cast<double>(batch - 1) * largest),
        std::ceil(sum / mine));
  }
}

std::vector<int64_t> evened(const std::vector<Share>& shares, const std::vector<double>& seconds) {
  int64_t batch = 0;
  std::vector<double> speeds;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!(seconds[i] > 0)) return {};
    batch += shares[i].count;
    speeds.push_back(static_cast<double>(shares[i].count) / seconds[i]);
  }
  const auto dealt = deal(batch, static_cast<int>(shares.size()), speeds);
  std::vector<int64_t> counts;
  for (const auto& share : dealt) counts.push_back(share.count);
  const bool somebody_has_none = std::find(counts.begin(), counts.end(), 0) != counts.end();
  return somebody_has_none || dealt == shares ? std::vector<int64_t>{} : counts;
}

std::vector<Share> microbatches(Share share, int64_t microbatch, size_t least) {
  if (microbatch < 0) refuse("a microbatch of {} samples is not possible", microbatch);
  const int64_t most = microbatch == 0 ? share.count : microbatch;
  const int64_t end = share.first + share.count;
  std::vector<Share> pieces;
  for (int64_t first = share.first; first < end; first += most) {
    pieces.push_back({first, std::min(most, end - first)});
  }
  while (pieces.size() < least) pieces.push_back({end, 0});
  return pieces;
}

size_t most_microbatches(const std::vector<Share>& shares, int64_t microbatch) {
  size_t most = 0;
  for (const auto& share : shares) most = std::max(most, microbatches(share, microbatch).size());
  return most;
}

}  // namespace trireme
