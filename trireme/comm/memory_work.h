// Who copies and adds up what a collective moves between buffers that this rank can reach: a core in the host's memory,
// or a card in its own and that of others.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/comm/call.h"
#include "trireme/device/device.h"

namespace trireme {

class MemoryWork {
 public:
  virtual ~MemoryWork() = default;
  // What is given from now on begins after the event.
  virtual void after(const DeviceEvent&) {}
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // As reduce() of comm/reduction, with the same bits.
  virtual void combine(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                       std::span<void* const> targets, int64_t count) = 0;
  // Returns when all that was given is done: only then may others be told of it.
  virtual void settle() {}
};

MemoryWork& host_work();
std::unique_ptr<MemoryWork> make_card_work(at::Device device);

}  // namespace trireme
