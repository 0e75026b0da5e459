// Any exception, LibTorch's and CUDA's among them, told as one of ours. A program without LibTorch has the standard
// ones only (cli/no_torch.cpp).
#pragma once

#include "trireme/base/foreign_error.h"

namespace trireme {

Explained explain(const std::exception_ptr& thrown);

}  // namespace trireme
