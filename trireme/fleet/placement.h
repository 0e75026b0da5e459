// Which devices of a type the chosen jobs of a round get. A job that stays on its type keeps its devices where it can;
// others are placed so that a gang lies on few servers.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "trireme/fleet/model.h"

namespace trireme::fleet {

// What a job wants of a type, and what it gets.
struct Wish {
  int row = 0;  // whose it is
  int scale = 1;
  std::span<const int> held;  // its devices until now, all of this type; empty: it had none here
  int begin = -1;             // the answer: `scale` devices from here on in the list of all
};

class Placement {
 public:
  explicit Placement(const Cluster& cluster);

  void set_usable(int device, bool usable);
  bool usable(int device) const { return usable_[static_cast<size_t>(device)]; }
  int usable_of(int type) const { return count_[static_cast<size_t>(type)]; }

  // Devices are free until someone gets them.
  void free_all();
  void free(std::span<const int> devices);
  int free_of(int type) const { return free_count_[static_cast<size_t>(type)]; }

  // Wishes, larger ones first, must fit into what is free. As the reference does it: by scale, those that can keep
  // their devices, then the others in the order of devices. Devices are appended to `given`.
  void place_in_order(int type, std::vector<Wish>& wishes, std::vector<int>& given);

  // All that can keep their devices do; then each gang goes to the server that it fills best, or to those with most
  // free devices.
  void place_packed(int type, std::vector<Wish>& wishes, std::vector<int>& given);

 private:
  bool is_free(int device) const { return free_[static_cast<size_t>(device)] && usable_[static_cast<size_t>(device)]; }
  void take(int device, std::vector<int>& given);
  bool keep(Wish& wish, std::vector<int>& given);
  void place_gang(int type, const Wish& wish, std::vector<int>& given);

  const Cluster& cluster_;
  std::vector<std::vector<int>> devices_of_;                    // by type, in order
  std::vector<std::vector<std::pair<int, int>>> server_spans_;  // by type: begin and end in devices_of_ of each server
  std::vector<char> usable_, free_;
  std::vector<int> count_, free_count_;
  std::vector<int> largest_;  // by type: devices of the largest server
};

}  // namespace trireme::fleet
