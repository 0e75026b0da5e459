#include "trireme/observe/ledger.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace trireme {

namespace {

constexpr size_t memories = 2;
constexpr auto spare = static_cast<size_t>(Owner::spare);

}  // namespace

struct Ledger::Counts {
  struct At {
    std::array<std::atomic<int64_t>, owners> bytes{};
    std::atomic<int64_t> total{0};  // without spare
    std::atomic<int64_t> most{0}, most_with_spare{0};
    std::mutex mutex;  // of what the most is made of
    BytesByOwner at_most{};

    BytesByOwner now() const {
      BytesByOwner all;
      for (size_t i = 0; i < owners; ++i) all[i] = bytes[i].load(std::memory_order_relaxed);
      return all;
    }
    void note(int64_t held) {
      const int64_t with_spare = held + bytes[spare].load(std::memory_order_relaxed);
      if (with_spare > most_with_spare.load(std::memory_order_relaxed))
        most_with_spare.store(with_spare, std::memory_order_relaxed);
      if (held <= most.load(std::memory_order_relaxed)) return;
      const std::lock_guard lock(mutex);
      if (held <= most.load(std::memory_order_relaxed)) return;
      most.store(held, std::memory_order_relaxed);
      at_most = now();
    }
    void begin() {
      const std::lock_guard lock(mutex);
      const int64_t held = total.load(std::memory_order_relaxed);
      most.store(held, std::memory_order_relaxed);
      most_with_spare.store(held + bytes[spare].load(std::memory_order_relaxed), std::memory_order_relaxed);
      at_most = now();
    }
  };
  At at[memories];

  At& of(Memory memory) { return at[static_cast<size_t>(memory)]; }
};

namespace {

// Tensors may be given back after everything else has ended: what counts them stays for ever. There are few.
Ledger::Counts* new_counts() {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<Ledger::Counts>>;
  const std::lock_guard lock(mutex);
  return all.emplace_back(std::make_unique<Ledger::Counts>()).get();
}

thread_local Holding current;

}  // namespace

Ledger::Ledger() : counts_(new_counts()) {}

void Ledger::charge(Counts& counts, Memory memory, Owner owner, int64_t bytes) {
  auto& at = counts.of(memory);
  at.bytes[static_cast<size_t>(owner)].fetch_add(bytes, std::memory_order_relaxed);
  if (owner == Owner::spare) return;  // it was held before, or will be
  const int64_t held = at.total.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0) at.note(held);
}

void Ledger::hand_over(Counts& counts, Memory memory, Owner from, Owner to, int64_t bytes) {
  auto& at = counts.of(memory);
  at.bytes[static_cast<size_t>(from)].fetch_sub(bytes, std::memory_order_relaxed);
  at.bytes[static_cast<size_t>(to)].fetch_add(bytes, std::memory_order_relaxed);
}

int64_t Ledger::held(Memory memory, Owner owner) const {
  return counts_->of(memory).bytes[static_cast<size_t>(owner)].load(std::memory_order_relaxed);
}

int64_t Ledger::held(Memory memory) const { return counts_->of(memory).total.load(std::memory_order_relaxed); }

Ledger::Most Ledger::most(Memory memory) const {
  auto& at = counts_->of(memory);
  const std::lock_guard lock(at.mutex);
  return {at.most.load(std::memory_order_relaxed), at.at_most, at.most_with_spare.load(std::memory_order_relaxed)};
}

void Ledger::begin_most() {
  for (auto& at : counts_->at) at.begin();
}

Ledger::Counts& Holding::charged() const {
  static auto& of_process = *new_counts();
  return counts ? *counts : of_process;
}

Holding holding() { return current; }

OwnerScope::OwnerScope(Holding next) : before_(std::exchange(current, next)) {}

OwnerScope::~OwnerScope() { current = before_; }

ChargedBytes::ChargedBytes(Memory memory, int64_t bytes) : holding_(holding()), memory_(memory), bytes_(bytes) {
  Ledger::charge(holding_.charged(), memory_, holding_.owner, bytes_);
}

ChargedBytes& ChargedBytes::operator=(ChargedBytes&& other) noexcept {
  std::swap(holding_, other.holding_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ChargedBytes::~ChargedBytes() {
  if (bytes_ != 0) Ledger::charge(holding_.charged(), memory_, holding_.owner, -bytes_);
}

}  // namespace trireme
