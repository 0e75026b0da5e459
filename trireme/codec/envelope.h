// What stands before a payload on the host: whose it is, how long, and a checksum of all of it, so that a message that
// is cut, damaged or somebody else's is refused before anything is read from it.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/spec/config.h"

namespace trireme {

struct Envelope {
  static constexpr uint32_t own_mark = 0x63657254;  // "Trec"
  static constexpr uint16_t own_version = 1;

  uint32_t mark = own_mark;
  uint16_t version = own_version;
  uint16_t kind = 0;
  uint32_t setting = 0, unused = 0;
  uint64_t count = 0, payload_bytes = 0;
  uint64_t checksum = 0;  // of the payload and of all above
};
constexpr int64_t envelope_bytes = sizeof(Envelope);
static_assert(envelope_bytes == 40);

uint64_t checksum(const Envelope& envelope, std::span<const uint8_t> payload);

// Writes the envelope of a payload that lies behind it.
void seal(Envelope envelope, uint8_t* message);
// The payload of a message that is what `expected` says, which knows neither length nor checksum; an Error otherwise.
std::span<const uint8_t> unseal(const Envelope& expected, std::span<const uint8_t> message);

}  // namespace trireme
