// Takes the place of nccl_transport.cpp where there is no NCCL.
#include "trireme/base/error.h"
#include "trireme/comm/nccl.h"

namespace trireme {

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport>, at::Device) {
  refuse("comm.transport = nccl: this build has no NCCL; build where LibTorch has CUDA, or use comm.transport=auto");
}

}  // namespace trireme
