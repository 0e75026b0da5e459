#include "trireme/comm/fault.h"

#include "trireme/device/foreign_error.h"

namespace trireme {

Error fault_of(const std::exception_ptr& thrown, const BoardSlot& slot) {
  const auto [error, out_of_memory] = explain(thrown);
  if (!out_of_memory) return error;
  return {error.kind(),
          fmt::format("{}, in {}. Smaller microbatches (train.microbatch), more stages (parallel.pipe) or a "
                      "smaller model need less",
                      error.what(), slot.last_operation())};
}

}  // namespace trireme
