// What a run would be, as `trireme train --dry-run` says it: its plan, what each rank would hold, and whether that fits
// where it would run.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/spec/layer.h"
#include "trireme/spec/plan.h"
#include "trireme/spec/stage_plan.h"

namespace trireme {

// Of hosts alike, or of their cards, the one that would hold most.
struct MemoryForecast {
  int hosts = 1;
  int ranks_on_each = 1;
  bool cards = false;      // whether each rank has a card of its own, or the ranks of a host share its memory
  double held_bytes = 0;   // foreseen
  int64_t room_bytes = 0;  // that there are

  bool fits() const { return held_bytes <= static_cast<double>(room_bytes); }
  std::string brief() const;
};

struct RunForecast {
  LayerTable table;
  int64_t steps = 1;
  Plan plan;
  std::vector<StagePlan> stages;
  bool data_seen = true;
  std::string data;  // what it is, or why it was not seen
  MemoryForecast memory;
  std::vector<std::string> findings;  // what else was looked at, a sentence each

  std::string full() const;
  nlohmann::ordered_json json() const;
};

}  // namespace trireme
