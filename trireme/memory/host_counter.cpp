#include "trireme/memory/counters.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace trireme {

namespace {

// In front of each block: how large it is and who holds it.
struct Head {
  int64_t bytes;
  Ledger::Counts* counts;
  std::atomic<Owner> owner;

  void charge(int64_t more) const { Ledger::charge(*counts, Memory::host, owner, more); }
  // The whole block is kept to spare, or no longer.
  void charge_spare(int64_t more) const { Ledger::charge(*counts, Memory::host, Owner::spare, more); }
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
    static_cast<const Head*>(block)->charge_spare(-static_cast<int64_t>(bytes));
    return block;
  }

  bool give(void* block, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (held_ + bytes > most_held) return false;
    blocks_[bytes].push_back(block);
    held_ += bytes;
    static_cast<const Head*>(block)->charge_spare(static_cast<int64_t>(bytes));
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
    const auto holding = holding_of_pass();
    const auto* head = new (block) Head{static_cast<int64_t>(bytes), &holding.charged(), holding.owner};
    head->charge(head->bytes);
    void* data = block + c10::gAlignment;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }  // oneDNN asks for memory this way

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  static void release(void* data) {
    if (!data) return;
    auto* block = static_cast<char*>(data) - c10::gAlignment;
    const auto* head = reinterpret_cast<const Head*>(block);
    head->charge(-head->bytes);
    const size_t size = block_bytes(static_cast<size_t>(head->bytes));
    if (size < SpareBlocks::least || !spare_blocks().give(block, size)) c10::free_cpu(block);
  }
};

}  // namespace

bool hand_over_on_host(const c10::DataPtr& memory, Owner to) {
  if (memory.get_deleter() != &CountingAllocator::release) return false;
  auto& head = *reinterpret_cast<Head*>(static_cast<char*>(memory.get_context()) - c10::gAlignment);
  Ledger::hand_over(*head.counts, Memory::host, head.owner.exchange(to), to, head.bytes);
  return true;
}

void count_host_memory() {
  static auto& allocator = *new CountingAllocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace trireme
