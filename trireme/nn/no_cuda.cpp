// Takes the place of dropout_kernel.cu where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/nn/dropout_kernel.h"

namespace trireme {

void drop_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, uint32_t, double) {
  fail("this build has no CUDA");
}

}  // namespace trireme
