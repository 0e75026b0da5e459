// The bytes that a rank holds, by who holds them, counted as they are allocated and given back: how much now, and how it
// stood when most was held at once. A host's memory and a card's are counted apart.
#pragma once

#include <cstdint>
#include <utility>

#include "trireme/base/owner.h"

namespace trireme {

enum class Memory : uint8_t { host, card };

class Ledger {
 public:
  // At the instant when most was held. What is kept to spare is not held: it is told beside the others.
  struct Most {
    int64_t total = 0;
    BytesByOwner by_owner{};
    int64_t with_spare = 0;  // held and kept at once, at most
  };

  Ledger();

  // Less is given back. Whoever charges may outlive the ledger, as a tensor may outlive its rank.
  struct Counts;
  void charge(Memory memory, Owner owner, int64_t bytes) { charge(*counts_, memory, owner, bytes); }
  static void charge(Counts& counts, Memory memory, Owner owner, int64_t bytes);
  static void hand_over(Counts& counts, Memory memory, Owner from, Owner to, int64_t bytes);
  Counts& counts() const { return *counts_; }

  int64_t held(Memory memory, Owner owner) const;
  int64_t held(Memory memory) const;  // by all, without what is kept to spare
  Most most(Memory memory) const;
  // From now on the most is looked for anew.
  void begin_most();

 private:
  Counts* counts_;
};

// For whom a thread allocates.
struct Holding {
  Ledger::Counts* counts = nullptr;  // none: it works for no rank
  Owner owner = Owner::other;

  // Then the process holds it.
  Ledger::Counts& charged() const;
};
Holding holding();  // of the calling thread

// While this lives, what the calling thread allocates belongs to an owner, of the rank that it works for.
class OwnerScope {
 public:
  explicit OwnerScope(Owner owner) : OwnerScope(Holding{holding().counts, owner}) {}
  OwnerScope(Ledger& ledger, Owner owner) : OwnerScope(Holding{&ledger.counts(), owner}) {}
  explicit OwnerScope(Holding holding);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  const Holding before_;
};

// Memory that no allocator counts, such as what ranks of a host share: charged to the calling thread's owner while this
// lives.
class ChargedBytes {
 public:
  ChargedBytes() = default;
  ChargedBytes(Memory memory, int64_t bytes);
  ~ChargedBytes();
  ChargedBytes(ChargedBytes&& other) noexcept { *this = std::move(other); }
  ChargedBytes& operator=(ChargedBytes&& other) noexcept;

 private:
  Holding holding_;
  Memory memory_ = Memory::host;
  int64_t bytes_ = 0;
};

}  // namespace trireme
