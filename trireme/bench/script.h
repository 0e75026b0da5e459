// The scripts that benchmarks run beside us: peers and tools.
#pragma once

#include <string>

namespace trireme {

// Where one lies, by its place in the source tree (bench/torch_train.py): beside the installed program, under
// share/trireme, or in the source tree that the program was built from. Refuses where it is in neither.
std::string script(const std::string& place);

}  // namespace trireme
