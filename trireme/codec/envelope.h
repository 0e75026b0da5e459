// What stands before a payload on the host: whose it is, how long, and a checksum of all of it, so that a message that
// is cut, damaged or somebody else's is refused.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/codec/message_sum.h"

namespace trireme {

struct Envelope {
  static constexpr uint32_t own_mark = 0x63657254;  // "Trec"
  static constexpr uint16_t own_version = 1;

  uint32_t mark = own_mark;
  uint16_t version = own_version;
  uint16_t kind = 0;
  uint32_t setting = 0, unused = 0;
  uint64_t count = 0, payload_bytes = 0;
  uint64_t checksum = 0;  // of all above and the payload's checksum
};
constexpr int64_t envelope_bytes = sizeof(Envelope);
static_assert(envelope_bytes == 40);

// Writes the envelope of a payload that lies behind it, and of which `sum` may have seen a first part.
void seal(Envelope envelope, MessageSum& sum, uint8_t* message);

// A payload that came: who reads it has it checked, all at once before or bit by bit while it is read.
class Sealed {
 public:
  // Refuses what is not a message like `expected`, which knows neither length nor checksum.
  Sealed(const Envelope& expected, std::span<const uint8_t> message);

  std::span<const uint8_t> payload() const { return payload_; }
  // The payload up to here is being read.
  void pass(size_t end) { sum_.add(payload_.subspan(sum_.added(), end - sum_.added())); }
  // Passes the rest, and refuses a payload that is not what was sent.
  void check();

 private:
  Envelope found_;
  std::span<const uint8_t> payload_;
  MessageSum sum_;
};

}  // namespace trireme
