#include "trireme/memory/counters.h"
#include "trireme/memory/spare.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace trireme {

namespace {

// In front of each block: how large it is and who holds it.
struct Head {
  int64_t bytes;
  Ledger::Counts* counts;
  std::atomic<Owner> owner;
  Head *older = nullptr, *newer = nullptr;  // of those that are kept to spare

  void charge(int64_t more) const { Ledger::charge(*counts, Memory::host, owner, more); }
  // The whole block is kept to spare, or no longer.
  void charge_spare(int64_t more) const { Ledger::charge(*counts, Memory::host, Owner::spare, more); }
};
static_assert(sizeof(Head) <= c10::gAlignment);

// What a tensor of so many bytes takes: whole pages for large ones.
constexpr size_t least_spare = 32 << 10;
size_t block_bytes(size_t bytes) {
  const size_t with_head = bytes + c10::gAlignment;
  return with_head < least_spare ? with_head : (with_head + 4095) / 4096 * 4096;
}

// The largest blocks are mapped, each by itself: what malloc would split and could not join again stayed with the process.
#ifdef TRIREME_SANITIZED
constexpr size_t least_mapped = std::numeric_limits<size_t>::max();  // a sanitizer wants to see every block
#else
constexpr size_t least_mapped = 256 << 10;
#endif

void* fresh_block(size_t size) {
  if (size < least_mapped) return c10::alloc_cpu(size);
  void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // In LibTorch's words, which are told to people in ours.
  TORCH_CHECK(block != MAP_FAILED, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", size, " bytes");
  return block;
}

void free_block(void* block, size_t size) {
  if (size < least_mapped) return c10::free_cpu(block);
  munmap(block, size);
}

// Large blocks that were freed, by size. A step frees and takes the same sizes over and over: what malloc does each
// time to search, split and join them would be done by one thread while the others wait. What is kept here takes the
// process a quarter beyond what its tensors themselves have held at once, and no further: before that the block that has
// lain here longest goes. (Without the quarter a ResNet's step mapped 70 MB anew, and took a sixth longer.)
class SpareBlocks {
 public:
  // Null where there is none; then a fresh one is made, and took() says so.
  void* take(size_t size) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(size);
    if (found == blocks_.end() || found->second.empty()) {
      make_room(size);
      return nullptr;
    }
    auto* head = found->second.back();
    found->second.pop_back();
    leave(head, size);
    hold(size);
    return head;
  }

  void took(size_t size) {
    std::lock_guard lock(mutex_);
    hold(size);
  }

  void give(Head* head, size_t size) {
    std::lock_guard lock(mutex_);
    live_ -= size;
#ifdef TRIREME_SANITIZED
    return free_block(head, size);
#endif
    blocks_[size].push_back(head);
    head->older = newest_;
    head->newer = nullptr;
    (newest_ ? newest_->newer : oldest_) = head;
    newest_ = head;
    spare_ += size;
    head->charge_spare(static_cast<int64_t>(size));
    make_room(0);
  }

  void free_all() {
    std::lock_guard lock(mutex_);
    free_down_to(0);
  }

 private:
  void hold(size_t size) {
    live_ += size;
    most_live_ = std::max(most_live_, live_);
  }

  void make_room(size_t more) {
    const size_t most = std::max(most_live_, live_ + more);
    free_down_to(most + most / 4 - live_ - more);
  }

  void free_down_to(size_t spare) {
    while (oldest_ && spare_ > spare) {
      auto* head = oldest_;
      const size_t size = block_bytes(static_cast<size_t>(head->bytes));
      blocks_[size].pop_front();  // the oldest of all is the oldest of its size
      leave(head, size);
      free_block(head, size);
    }
  }

  void leave(Head* head, size_t size) {
    (head->older ? head->older->newer : oldest_) = head->newer;
    (head->newer ? head->newer->older : newest_) = head->older;
    spare_ -= size;
    head->charge_spare(-static_cast<int64_t>(size));
  }

  std::mutex mutex_;
  std::unordered_map<size_t, std::deque<Head*>> blocks_;
  Head *oldest_ = nullptr, *newest_ = nullptr;
  size_t spare_ = 0, live_ = 0, most_live_ = 0;  // of large blocks
};

SpareBlocks& spare_blocks() {
  static auto& spare = *new SpareBlocks;  // tensors may be freed after everything else
  return spare;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    const size_t size = block_bytes(bytes);
    auto* block = static_cast<char*>(size < least_spare ? c10::alloc_cpu(size) : large_block(size));
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

  static void* large_block(size_t size) {
    if (void* spare = spare_blocks().take(size)) return spare;
    void* fresh = fresh_block(size);
    spare_blocks().took(size);
    return fresh;
  }

  static void release(void* data) {
    if (!data) return;
    auto* head = reinterpret_cast<Head*>(static_cast<char*>(data) - c10::gAlignment);
    head->charge(-head->bytes);
    const size_t size = block_bytes(static_cast<size_t>(head->bytes));
    size < least_spare ? c10::free_cpu(head) : spare_blocks().give(head, size);
  }
};

}  // namespace

bool hand_over_on_host(const c10::DataPtr& memory, Owner to) {
  if (memory.get_deleter() != &CountingAllocator::release) return false;
  auto& head = *reinterpret_cast<Head*>(static_cast<char*>(memory.get_context()) - c10::gAlignment);
  Ledger::hand_over(*head.counts, Memory::host, head.owner.exchange(to), to, head.bytes);
  return true;
}

void free_spare_memory() { spare_blocks().free_all(); }

void count_host_memory() {
  static auto& allocator = *new CountingAllocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace trireme
