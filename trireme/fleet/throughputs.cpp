#include "trireme/fleet/throughputs.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::fleet {

int Throughputs::add_kind(const std::string& type, int scale) {
  const auto [place, is_new] = kind_numbers_.try_emplace({type, scale}, static_cast<int>(kinds_.size()));
  if (is_new) {
    kinds_.emplace_back(type, scale);
    alone_.resize(alone_.size() + most_device_types, not_given);
  }
  return place->second;
}

int Throughputs::find_kind(const std::string& type, int scale) const {
  const auto place = kind_numbers_.find({type, scale});
  return place == kind_numbers_.end() ? -1 : place->second;
}

bool Throughputs::knows_type(const std::string& type) const {
  const auto place = kind_numbers_.lower_bound({type, 0});
  return place != kind_numbers_.end() && place->first.first == type;
}

std::vector<std::string> Throughputs::type_names() const {
  std::vector<std::string> names;
  for (const auto& [kind, number] : kind_numbers_) {
    if (names.empty() || names.back() != kind.first) names.push_back(kind.first);
  }
  return names;
}

int Throughputs::add_device_type(const std::string& name) {
  const auto place = std::find(device_types_.begin(), device_types_.end(), name);
  if (place != device_types_.end()) return static_cast<int>(place - device_types_.begin());
  if (device_types_.size() == most_device_types)
    refuse("{}: more than {} types of devices", source_, most_device_types);
  device_types_.push_back(name);
  return static_cast<int>(device_types_.size()) - 1;
}

void Throughputs::set_alone(int kind, int device_type, double rate) { alone_[cell(kind, device_type)] = rate; }

void Throughputs::set_together(int kind, int other, int device_type, double rate, double other_rate) {
  together_[key(kind, other, device_type)] = {rate, other_rate};
}

std::array<double, 2> Throughputs::together(int kind, int other, int device_type) const {
  if (const auto place = together_.find(key(kind, other, device_type)); place != together_.end()) return place->second;
  if (const auto place = together_.find(key(other, kind, device_type)); place != together_.end()) {
    return {place->second[1], place->second[0]};
  }
  return {0, 0};
}

Throughputs Throughputs::select(const Cluster& cluster) const {
  Throughputs chosen = *this;
  chosen.device_types_.clear();
  chosen.together_.clear();
  std::vector<int> from;
  for (const auto& type : cluster.types) {
    const auto place = std::find(device_types_.begin(), device_types_.end(), type.name);
    if (place == device_types_.end()) {
      const auto meant = nearest(type.name, device_types_);
      refuse("{} has no throughputs of device type {}{}", source_, type.name,
             meant.empty() ? "" : fmt::format(", did you mean {}?", meant));
    }
    from.push_back(static_cast<int>(place - device_types_.begin()));
    chosen.add_device_type(type.name);
  }
  for (int kind = 0; kind < static_cast<int>(kinds_.size()); ++kind) {
    for (size_t to = 0; to < from.size(); ++to) chosen.set_alone(kind, static_cast<int>(to), alone(kind, from[to]));
  }
  std::array<int, most_device_types> target;
  target.fill(-1);
  for (size_t to = 0; to < from.size(); ++to) target[static_cast<size_t>(from[to])] = static_cast<int>(to);
  for (const auto& [place, rates] : together_) {
    const int to = target[place % most_device_types];
    if (to >= 0) chosen.together_[place / most_device_types * most_device_types + static_cast<uint64_t>(to)] = rates;
  }
  return chosen;
}

}  // namespace trireme::fleet
