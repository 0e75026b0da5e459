// NCCL for tensors of cards. It has been run with one rank only: NCCL refuses two ranks on one card, and no machine
// with several was at hand.
#pragma once

#include <memory>

#include "trireme/comm/transport.h"

namespace trireme {

// Carries out collectives of tensors on `device` by NCCL; all else goes by `host`, by which ranks also compare their
// calls. Collective.
std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> host, at::Device device);

}  // namespace trireme
