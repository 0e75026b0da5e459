// What the scheduler speaks of: devices of some types in servers, and jobs that want to take steps on them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::fleet {

struct DeviceType {
  std::string name;
  double cost_per_hour = 0;  // of one device
  double memory_gb = 0;      // of one device; 0 = not said
};

struct Device {
  int type = 0, server = 0;
};

// Types are in the order of their names, devices in the order of their types and then of their servers; the number of a
// device is its place here.
struct Cluster {
  std::vector<DeviceType> types;
  std::vector<std::string> servers;
  std::vector<Device> devices;
  std::vector<int> written_order;  // the types as the person listed them

  int type_index(std::string_view name) const;  // -1: none of that name
  int devices_of(int type) const;
  std::string brief() const;  // "v100=12,p100=12,k80=12", as written
};

// Servers of one kind, as a person describes them.
struct ServerGroup {
  std::string name;  // of one; "name-0", "name-1" … of several
  int count = 1;
  std::vector<std::pair<std::string, int>> devices;  // by type
};

// Puts a cluster together; `types` says what is known of them, in the order in which they were written.
Cluster make_cluster(std::vector<DeviceType> types, const std::vector<ServerGroup>& groups);

// "v100=12,p100=12,k80=12": so many servers of one device each. "v100=3x4": three servers of four devices.
Cluster parse_cluster(const std::string& text);

// Whose jobs they are, where owners share the cluster first and their jobs second.
struct Owner {
  std::string name;
  double weight = 1;
  bool in_order = false;  // its oldest job first, instead of fairly among its jobs
};

struct Job {
  int64_t id = 0;    // in the order of arrival
  std::string name;  // what a person calls it; its number when it has no name
  std::string type;  // "ResNet-18 (batch size 64)"
  double steps = 0;
  int scale = 1;                                                // devices that it takes at once
  double weight = 1;                                            // priority
  std::string owner;                                            // entity, for hierarchical policies
  double deadline_s = std::numeric_limits<double>::infinity();  // after its arrival
  double slo = 0;        // its deadline as a multiple of the time that it takes at its best; 0 = none
  double memory_gb = 0;  // that it needs of each device
  double arrival_s = 0;
  std::string place;  // "my.trace:7", for complaints
};

}  // namespace trireme::fleet
