#include "trireme/device/counted_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
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

// Large blocks that were freed, by size. A step frees and takes the same sizes over and over: what malloc does each
// time to search, split and join them would be done by one thread while the others wait.
class SpareBlocks {
 public:
  static constexpr size_t least = 32 << 10;
#ifdef TRIREME_SANITIZED
  static constexpr size_t most_held = 0;  // a sanitizer wants to see every free
#else
  static constexpr size_t most_held = 1 << 30;
#endif

  void* take(size_t bytes) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(bytes);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* block = found->second.back();
    found->second.pop_back();
    held_ -= bytes;
    return block;
  }

  bool give(void* block, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (held_ + bytes > most_held) return false;
    blocks_[bytes].push_back(block);
    held_ += bytes;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> blocks_;
  size_t held_ = 0;
};

SpareBlocks& spare_blocks() {
  static auto& spare = *new SpareBlocks;  // tensors may be freed after everything else
  return spare;
}

// What is asked of malloc for a tensor of so many bytes: whole pages for large ones.
size_t block_bytes(size_t bytes) {
  const size_t with_head = bytes + c10::gAlignment;
  return with_head < SpareBlocks::least ? with_head : (with_head + 4095) / 4096 * 4096;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const size_t size = block_bytes(bytes);
    void* spare = size < SpareBlocks::least ? nullptr : spare_blocks().take(size);
    auto* block = static_cast<char*>(spare ? spare : c10::alloc_cpu(size));
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
    const size_t size = block_bytes(static_cast<size_t>(head->bytes));
    if (size < SpareBlocks::least || !spare_blocks().give(block, size)) c10::free_cpu(block);
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
