// Which policies can run where Clp was missing at configure time: all but those that solve programs over pairs.
#pragma once

#include <string_view>

#include "trireme/base/error.h"
#include "trireme/fleet/lp/linear_program.h"
#include "trireme/fleet/policy.h"

namespace trireme::fleet {

inline bool have_clp() {
  try {
    LinearProgram{};
    return true;
  } catch (const Error&) {
    return false;
  }
}

inline bool runs_here(std::string_view name) {
  const auto& info = policy_info(name);
  return !info.shares_devices || info.name == "fifo-packed" || info.name == "gandiva" || have_clp();
}

}  // namespace trireme::fleet
