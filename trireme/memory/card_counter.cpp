// LibTorch's allocator of a card says what it gives out and takes back. What it keeps of the card's memory beyond that is
// there to spare.
#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>
#include <type_traits>
#include <unordered_map>

#include "trireme/memory/counters.h"

namespace trireme {

namespace {

struct Block {
  int64_t bytes;
  Ledger::Counts* counts;
  Owner owner;
};

class CardCounter {
 public:
  template <typename Entry>
  void note(const Entry& entry) {
    const auto bytes = static_cast<int64_t>(entry.size_);
    switch (entry.action_) {
      case Entry::ALLOC: return give(entry.addr_, bytes);
      case Entry::FREE_REQUESTED: return take(entry.addr_);
      case Entry::SEGMENT_ALLOC: return spare(bytes);
      case Entry::SEGMENT_FREE: return spare(-bytes);
      default: return;
    }
  }

  bool hand_over(uint64_t address, Owner to) {
    std::unique_lock lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    const auto block = found->second;
    found->second.owner = to;
    lock.unlock();
    Ledger::hand_over(*block.counts, Memory::card, block.owner, to, block.bytes);
    return true;
  }

 private:
  void give(uint64_t address, int64_t bytes) {
    const auto holding = holding_of_pass();
    const Block block{bytes, &holding.charged(), holding.owner};
    {
      const std::lock_guard lock(mutex_);
      blocks_[address] = block;
    }
    Ledger::charge(*block.counts, Memory::card, Owner::spare, -bytes);
    Ledger::charge(*block.counts, Memory::card, block.owner, bytes);
  }

  void take(uint64_t address) {
    std::unique_lock lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return;  // given out before anybody counted
    const auto block = found->second;
    blocks_.erase(found);
    lock.unlock();
    Ledger::charge(*block.counts, Memory::card, block.owner, -block.bytes);
    Ledger::charge(*block.counts, Memory::card, Owner::spare, block.bytes);
  }

  static void spare(int64_t bytes) {
    Ledger::charge(holding_of_pass().charged(), Memory::card, Owner::spare, bytes);
  }

  std::mutex mutex_;
  std::unordered_map<uint64_t, Block> blocks_;
};

CardCounter& card_counter() {
  static auto& counter = *new CardCounter;
  return counter;
}

}  // namespace

void count_card_memory() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& entry) { card_counter().note(entry); });
}

bool hand_over_on_card(const c10::DataPtr& memory, Owner to) {
  return card_counter().hand_over(reinterpret_cast<uint64_t>(memory.get()), to);
}

}  // namespace trireme
