// Takes the place of cuda_work.cpp where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/comm/memory_work.h"

namespace trireme {

std::unique_ptr<MemoryWork> make_card_work(at::Device) { fail("this build has no CUDA"); }

}  // namespace trireme
