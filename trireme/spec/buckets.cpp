#include "trireme/spec/buckets.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace trireme {

namespace {

constexpr int64_t line = 16;  // elements: every parameter starts on a cache line, whatever the type

int64_t whole_lines(int64_t elements) { return (elements + line - 1) / line * line; }

}  // namespace

std::vector<BucketLayout> lay_out_buckets(std::span<const BucketItem> items, int64_t largest) {
  std::vector<size_t> order(items.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::erase_if(order, [&](size_t i) { return !items[i].trained; });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].tie < items[b].tie; });
  std::vector<BucketLayout> buckets;
  for (const size_t i : order) {
    const auto& item = items[i];
    const int64_t elements = whole_lines(item.elements);
    const bool fits = !buckets.empty() && buckets.back().tie == item.tie && buckets.back().owned == item.owned &&
                      buckets.back().elements + elements <= largest;
    if (!fits) {
      buckets.emplace_back();
      buckets.back().tie = item.tie;
      buckets.back().owned = item.owned;
    }
    buckets.back().places.push_back({i});
    buckets.back().elements += elements;
  }
  for (auto& bucket : buckets) {
    // Decaying parameters first: the optimizer then works on two runs a bucket.
    std::stable_partition(bucket.places.begin(), bucket.places.end(),
                          [&](const auto& place) { return items[place.item].decays; });
    int64_t offset = 0;
    for (auto& place : bucket.places) {
      place.offset = offset;
      offset += whole_lines(items[place.item].elements);
      if (items[place.item].decays) bucket.decaying = offset;
    }
  }
  return buckets;
}

std::vector<BucketLayout> buckets_of(const Plan& plan, const LayerTable& table, int stage) {
  std::vector<BucketItem> items;
  for (const auto& held : held_parameters(plan, table, stage)) {
    const auto& parameter = table.weights[held.number];
    items.push_back({parameter.elements(), parameter.trained, parameter.decays(), held.tie, held.owned});
  }
  return lay_out_buckets(items, static_cast<int64_t>(plan.sync.bucket_mb * 1e6) / table.master_bytes());
}

std::vector<int> bucket_roots(std::span<const BucketShape> buckets, const std::function<int(int tie)>& ranks) {
  std::map<int, std::vector<int64_t>> loads;  // by tie
  std::vector<int> roots;
  for (const auto& bucket : buckets) {
    auto& load = loads[bucket.tie];
    load.resize(static_cast<size_t>(ranks(bucket.tie)));
    const auto least = std::min_element(load.begin(), load.end());
    *least += bucket.elements;
    roots.push_back(static_cast<int>(least - load.begin()));
  }
  return roots;
}

std::vector<size_t> spread_order(std::span<const BucketShape> buckets) {
  std::vector<size_t> order(buckets.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    const int tie_x = buckets[x].tie, tie_y = buckets[y].tie;
    return tie_x >= 0 && (tie_y < 0 || tie_x < tie_y);
  });
  return order;
}

}  // namespace trireme
