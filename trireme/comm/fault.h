// Why a rank ends, as it is told to people and written on the board.
#pragma once

#include <exception>

#include "trireme/base/error.h"
#include "trireme/observe/board.h"

namespace trireme {

// Whatever was thrown, as one of our errors (device/foreign_error.h); of memory that is missing also what the rank was
// doing and what would need less.
Error fault_of(const std::exception_ptr& thrown, const BoardSlot& slot);

}  // namespace trireme
