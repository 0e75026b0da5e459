// Exceptions that are not ours (of the standard library, JSON, YAML), told as one of ours: a sentence without
// addresses, frames or type names. device/foreign_error.h knows LibTorch's too; the program and its ranks ask that one.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

struct Explained {
  Error error;
  bool out_of_memory = false;
};

// Our own exceptions come back as they are.
Explained explain_standard(const std::exception_ptr& thrown);

// "out of memory: 4.0 GB were asked for, more than is free"; without `bytes` the amount is not known.
Explained out_of_memory(std::optional<uint64_t> bytes, bool on_card = false);

}  // namespace trireme
