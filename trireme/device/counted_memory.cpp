#include "trireme/device/counted_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace trireme {

namespace {

using Counter = std::atomic<int64_t>;

// A thread's counter. Tensors may outlive the thread that made them, so counters are kept for ever; there are few.
Counter& counter_of_thread() {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<Counter>>;
  thread_local Counter* mine = nullptr;
  if (!mine) {
    std::lock_guard lock(mutex);
    mine = all.emplace_back(std::make_unique<Counter>(0)).get();
  }
  return *mine;
}

// In front of each block: how large it is and who counts it.
struct Head {
  int64_t bytes;
  Counter* counter;
};
static_assert(sizeof(Head) <= c10::gAlignment);

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    auto* block = static_cast<char*>(c10::alloc_cpu(bytes + c10::gAlignment));
    auto& counter = counter_of_thread();
    counter.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
    new (block) Head{static_cast<int64_t>(bytes), &counter};
    void* data = block + c10::gAlignment;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }  // oneDNN asks for memory this way

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  static void release(void* data) {
    if (!data) return;
    auto* block = static_cast<char*>(data) - c10::gAlignment;
    const auto* head = reinterpret_cast<const Head*>(block);
    head->counter->fetch_sub(head->bytes, std::memory_order_relaxed);
    c10::free_cpu(block);
  }
};

}  // namespace

void count_memory() {
  static auto& allocator = *new CountingAllocator;
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&allocator, /*priority=*/1); });
}

int64_t counted_bytes() { return counter_of_thread().load(std::memory_order_relaxed); }

}  // namespace trireme
