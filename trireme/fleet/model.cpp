#include "trireme/fleet/model.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::fleet {

namespace {

constexpr int most_devices = 1 << 22;

// A whole positive number, or -1.
int positive(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : -1;
}

}  // namespace

int Cluster::type_index(std::string_view name) const {
  for (size_t type = 0; type < types.size(); ++type) {
    if (types[type].name == name) return static_cast<int>(type);
  }
  return -1;
}

int Cluster::devices_of(int type) const {
  return static_cast<int>(
      std::count_if(devices.begin(), devices.end(), [&](const Device& device) { return device.type == type; }));
}

std::string Cluster::brief() const {
  std::string text;
  for (int type : written_order) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", types[static_cast<size_t>(type)].name, devices_of(type));
  }
  return text;
}

Cluster make_cluster(std::vector<DeviceType> types, const std::vector<ServerGroup>& groups) {
  Cluster cluster;
  std::vector<std::string> written;
  for (const auto& type : types) written.push_back(type.name);
  std::sort(types.begin(), types.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  cluster.types = std::move(types);
  for (const auto& name : written) cluster.written_order.push_back(cluster.type_index(name));
  for (const auto& group : groups) {
    for (int i = 0; i < group.count; ++i) {
      const int server = static_cast<int>(cluster.servers.size());
      cluster.servers.push_back(group.count == 1 ? group.name : fmt::format("{}-{}", group.name, i));
      for (const auto& [name, count] : group.devices) {
        if (cluster.devices.size() + static_cast<size_t>(count) > most_devices) {
          refuse("a cluster may have {} devices", most_devices);
        }
        cluster.devices.insert(cluster.devices.end(), static_cast<size_t>(count), {cluster.type_index(name), server});
      }
    }
  }
  std::stable_sort(cluster.devices.begin(), cluster.devices.end(),
                   [](const Device& a, const Device& b) { return a.type < b.type; });
  return cluster;
}

Cluster parse_cluster(const std::string& text) {
  std::vector<DeviceType> types;
  std::vector<ServerGroup> groups;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = entry.find('=');
    const auto refuse_entry = [&](const char* why) {
      refuse("--cluster {}: \"{}\" {}; write v100=12,p100=12, or v100=3x4 for three servers of four devices", text,
             entry, why);
    };
    if (equals == std::string::npos || equals == 0) refuse_entry("is not of the form TYPE=DEVICES");
    const std::string name = entry.substr(0, equals), amount = entry.substr(equals + 1);
    for (const auto& type : types) {
      if (type.name == name) refuse_entry("names a type twice");
    }
    if (amount == "0") continue;  // as if it were not there
    const size_t times = amount.find('x');
    const int servers = positive(amount.substr(0, times));
    const int each = times == std::string::npos ? 1 : positive(amount.substr(times + 1));
    if (servers < 0 || each < 0) refuse_entry("must have a whole number of devices");
    types.push_back({name});
    groups.push_back({name, servers, {{name, each}}});
  }
  if (types.empty()) refuse("--cluster {}: there is no device in it", text);
  return make_cluster(std::move(types), groups);
}

}  // namespace trireme::fleet
