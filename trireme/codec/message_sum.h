// The checksum of a message (XXH3, 64 bits) in pieces, so that its bytes are read while they are near. Beside the one
// of base/files it allocates nothing, and uses the widest registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trireme {

class MessageSum {
 public:
  MessageSum();
  // The bytes behind those that were added before.
  void add(std::span<const uint8_t> bytes);
  uint64_t value() const;
  size_t added() const { return added_; }

 private:
  alignas(64) std::byte state_[640];  // xxHash's own, whose name and size its header alone knows
  size_t added_ = 0;
};

uint64_t checksum_of(std::span<const uint8_t> bytes);

// The same work by registers of 512 bits, compiled in a file of its own.
void add_avx512(void* state, std::span<const uint8_t> bytes);

}  // namespace trireme
