// What the host's allocator keeps to spare.
#pragma once

namespace trireme {

// Gives it back to the system: before something large is held for long that is not part of a step.
void free_spare_memory();

}  // namespace trireme
