// What a run carries from step to step besides the parameters and the optimizer's state.
#pragma once

#include <cstdint>

namespace trireme {

struct Progression {
  int64_t step = 0;     // steps done
  int64_t updates = 0;  // of which so many changed the parameters
  int64_t skipped = 0;  // and so many were skipped for values that are not finite
  int64_t skipped_in_a_row = 0;
};

}  // namespace trireme
