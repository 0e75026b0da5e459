// Takes the place of the kernels of CUDA (*.cu) where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/codec/fixed_format.h"

namespace trireme {

void encode_fixed_cuda(const FixedFormat&, const FixedEncoding&, int) { fail("this build has no CUDA"); }
void decode_fixed_cuda(const FixedFormat&, const FixedDecoding&, int) { fail("this build has no CUDA"); }

}  // namespace trireme
