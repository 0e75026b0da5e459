// The world as the scheduler knows it: a clock, jobs that arrive, devices that come and go, and someone who runs jobs
// on devices. The simulator is one world; a service with real machines is another, and policies and the round mechanism
// do not know which they are in.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/fleet/model.h"

namespace trireme::fleet {

// The right of a job, or of two that share, to use some devices until the round ends or its steps are taken.
struct Lease {
  std::array<int64_t, 2> jobs{-1, -1};  // ids; the second is -1 when nobody shares
  std::array<int, 2> kinds{-1, -1};     // in the table of throughputs
  std::array<double, 2> steps{0, 0};    // at most so many
  int type = 0;                         // of its devices
  int begin = 0, count = 0;             // its devices, in the list of the round
  bool restart = false;                 // a job must first be brought here: it was stopped, or ran elsewhere

  bool shared() const { return jobs[1] >= 0; }
};

struct Round {
  std::vector<Lease> leases;
  std::vector<int> devices;  // those of each lease one after the other

  std::span<const int> devices_of(const Lease& lease) const {
    return std::span(devices).subspan(static_cast<size_t>(lease.begin), static_cast<size_t>(lease.count));
  }
  void clear() {
    leases.clear();
    devices.clear();
  }
};

// How a lease ended: all steps taken, the round over, or a device lost.
struct Ended {
  int lease = 0;  // its place in the round
  double at_s = 0;
  std::array<double, 2> steps{0, 0};  // that count: those after the last checkpoint are lost with a device
  bool device_lost = false;
};

struct Happening {
  double now_s = 0;
  std::vector<Ended> ended;
  std::vector<Job> arrived;
  std::vector<int> lost_devices, repaired_devices;
  bool more_to_come = true;  // jobs or devices may still arrive
};

class World {
 public:
  virtual ~World() = default;

  // The leases of the round from `first` on begin now; those before it began earlier. The round stays as it is, but for
  // leases that are added, until all of them have ended.
  virtual void start(const Round& round, size_t first) = 0;

  // Waits and says what happened meanwhile. At `until_s` every lease ends. With `wake_early` any event ends the wait,
  // else only the end of all leases does; when no lease runs, the next event does.
  virtual void wait(double until_s, bool wake_early, Happening& happening) = 0;
};

}  // namespace trireme::fleet
