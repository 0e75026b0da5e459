// Says which rank keeps the others waiting step after step, where it is, and what would help.
#pragma once

#include <string>
#include <vector>

#include "trireme/comm/world.h"
#include "trireme/observe/stragglers.h"
#include "trireme/spec/plan.h"

namespace trireme {

// The sentence: who, where, by how much, and the shares that would make all replicas busy equally long.
std::string describe(const Straggler& straggler, const std::string& host, const Mesh& mesh,
                     const std::vector<Share>& shares);

class StragglerWatch {
 public:
  // Rank 0 learns where the others are. Collective.
  StragglerWatch(const Plan& plan, World& world);

  // Takes a step's report; warns when it is time.
  void after(const StepReport& report);

 private:
  World& world_;
  const Mesh mesh_;
  const std::vector<Share> shares_;
  std::vector<std::string> hosts_;  // by rank, on rank 0
  Stragglers stragglers_;
};

}  // namespace trireme
