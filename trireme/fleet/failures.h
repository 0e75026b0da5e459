// When devices and whole servers fail and come back in a simulation. Times between failures and times of repair are
// exponential, each device's and server's own; what they are depends on the seed alone.
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <vector>

#include "trireme/fleet/model.h"

namespace trireme::fleet {

struct FailureOptions {
  double device_mean_s = 0;  // between failures of one device; 0: they never fail
  double server_mean_s = 0;  // of one server, with all its devices
  double repair_mean_s = 14400;
  uint64_t seed = 0;

  bool any() const { return device_mean_s > 0 || server_mean_s > 0; }
};

// "device=500h,server=2000h,repair=4h"
FailureOptions parse_failures(const std::string& text);

class Failures {
 public:
  Failures(const FailureOptions& options, const Cluster& cluster);

  double next_s() const;  // infinity: never
  bool anything_broken() const { return broken_ > 0; }

  // Takes all that happens up to now; devices that are lost, or back, as a whole.
  void advance(double now_s, std::vector<int>& lost, std::vector<int>& repaired);

 private:
  struct Event {
    double at_s;
    int part;        // device, or server beyond all devices
    uint64_t count;  // of its failures before this one
    bool repair;
    bool operator>(const Event& other) const { return at_s != other.at_s ? at_s > other.at_s : part > other.part; }
  };

  void plan_failure(double now_s, int part, uint64_t count);

  FailureOptions options_;
  const Cluster& cluster_;
  std::vector<std::vector<int>> devices_of_server_;
  std::vector<int> reasons_;  // by device: how many of itself and its server are broken
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int broken_ = 0;
};

}  // namespace trireme::fleet
