#include <cstring>

#include "trireme/comm/memory_work.h"
#include "trireme/comm/reduction.h"

namespace trireme {

namespace {

class HostWork final : public MemoryWork {
 public:
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void combine(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
               int64_t count) override {
    reduce(dtype, op, sources, targets, count);
  }
};

}  // namespace

MemoryWork& host_work() {
  static HostWork work;
  return work;
}

}  // namespace trireme
