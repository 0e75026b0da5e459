#include "trireme/fleet/placement.h"

#include <algorithm>

namespace trireme::fleet {

Placement::Placement(const Cluster& cluster)
    : cluster_(cluster),
      devices_of_(cluster.types.size()),
      server_spans_(cluster.types.size()),
      usable_(cluster.devices.size(), 1),
      free_(cluster.devices.size(), 1),
      count_(cluster.types.size(), 0),
      largest_(cluster.types.size(), 0) {
  for (size_t device = 0; device < cluster.devices.size(); ++device) {
    const auto type = static_cast<size_t>(cluster.devices[device].type);
    auto& list = devices_of_[type];
    const int place = static_cast<int>(list.size());
    const bool same_server =
        !list.empty() && cluster.devices[static_cast<size_t>(list.back())].server == cluster.devices[device].server;
    if (!same_server) server_spans_[type].emplace_back(place, place);
    auto& span = server_spans_[type].back();
    ++span.second;
    largest_[type] = std::max(largest_[type], span.second - span.first);
    list.push_back(static_cast<int>(device));
    ++count_[type];
  }
  free_count_ = count_;
}

void Placement::set_usable(int device, bool usable) {
  const auto at = static_cast<size_t>(device);
  if (usable_[at] == static_cast<char>(usable)) return;
  const auto type = static_cast<size_t>(cluster_.devices[at].type);
  const int change = usable ? 1 : -1;
  usable_[at] = usable;
  count_[type] += change;
  if (free_[at]) free_count_[type] += change;
}

void Placement::free_all() {
  std::fill(free_.begin(), free_.end(), 1);
  free_count_ = count_;
}

void Placement::free(std::span<const int> devices) {
  for (int device : devices) {
    free_[static_cast<size_t>(device)] = 1;
    if (usable(device)) ++free_count_[static_cast<size_t>(cluster_.devices[static_cast<size_t>(device)].type)];
  }
}

void Placement::take(int device, std::vector<int>& given) {
  given.push_back(device);
  free_[static_cast<size_t>(device)] = 0;
  --free_count_[static_cast<size_t>(cluster_.devices[static_cast<size_t>(device)].type)];
}

bool Placement::keep(Wish& wish, std::vector<int>& given) {
  if (wish.held.empty()) return false;
  for (int device : wish.held) {
    if (!is_free(device)) return false;
  }
  wish.begin = static_cast<int>(given.size());
  for (int device : wish.held) take(device, given);
  return true;
}

void Placement::place_in_order(int type, std::vector<Wish>& wishes, std::vector<int>& given) {
  const auto& devices = devices_of_[static_cast<size_t>(type)];
  size_t next = 0;
  for (size_t begin = 0, end = 0; begin < wishes.size(); begin = end) {
    for (end = begin; end < wishes.size() && wishes[end].scale == wishes[begin].scale; ++end) keep(wishes[end], given);
    for (size_t i = begin; i < end; ++i) {
      if (wishes[i].begin >= 0) continue;
      wishes[i].begin = static_cast<int>(given.size());
      for (int missing = wishes[i].scale; missing > 0; ++next) {
        if (!is_free(devices[next])) continue;
        take(devices[next], given);
        --missing;
      }
    }
  }
}

void Placement::place_packed(int type, std::vector<Wish>& wishes, std::vector<int>& given) {
  for (auto& wish : wishes) keep(wish, given);
  const auto& devices = devices_of_[static_cast<size_t>(type)];
  size_t next = 0;
  for (auto& wish : wishes) {
    if (wish.begin >= 0) continue;
    wish.begin = static_cast<int>(given.size());
    if (wish.scale > 1) {
      place_gang(type, wish, given);
      continue;
    }
    while (!is_free(devices[next])) ++next;
    take(devices[next], given);
  }
}

void Placement::place_gang(int type, const Wish& wish, std::vector<int>& given) {
  const auto& devices = devices_of_[static_cast<size_t>(type)];
  const auto free_in = [&](const std::pair<int, int>& span) {
    int count = 0;
    for (int i = span.first; i < span.second; ++i) count += is_free(devices[static_cast<size_t>(i)]);
    return count;
  };
  for (int wanted = wish.scale; wanted > 0;) {
    // The tightest server that holds all that is wanted, else the emptiest.
    std::pair<int, int> best;
    int best_free = 0;
    for (const auto& span : server_spans_[static_cast<size_t>(type)]) {
      const int here = free_in(span);
      const bool better = best_free < wanted ? here > best_free : here >= wanted && here < best_free;
      if (!better) continue;
      best = span;
      best_free = here;
      if (here == wanted || here == largest_[static_cast<size_t>(type)]) break;
    }
    for (int i = best.first; i < best.second && wanted > 0; ++i) {
      if (!is_free(devices[static_cast<size_t>(i)])) continue;
      take(devices[static_cast<size_t>(i)], given);
      --wanted;
    }
  }
}

}  // namespace trireme::fleet
