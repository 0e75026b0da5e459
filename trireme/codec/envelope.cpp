#include "trireme/codec/envelope.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme {

uint64_t checksum(const Envelope& envelope, std::span<const uint8_t> payload) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), XXH3_64bits(&envelope, offsetof(Envelope, checksum)));
}

void seal(Envelope envelope, uint8_t* message) {
  envelope.checksum = checksum(envelope, {message + envelope_bytes, envelope.payload_bytes});
  std::memcpy(message, &envelope, sizeof envelope);
}

std::span<const uint8_t> unseal(const Envelope& expected, std::span<const uint8_t> message) {
  if (message.size() < sizeof(Envelope)) fail("a message of {} bytes is cut off within its header", message.size());
  Envelope found;
  std::memcpy(&found, message.data(), sizeof found);
  if (found.mark != Envelope::own_mark) fail("these bytes are no codec's message");
  if (found.version != Envelope::own_version)
    fail("the message is of version {}, and this program reads version {}", found.version, Envelope::own_version);
  const auto payload = message.subspan(sizeof(Envelope));
  if (found.payload_bytes != payload.size())
    fail("the message has {} bytes behind its header, which tells of {}", payload.size(), found.payload_bytes);
  if (found.checksum != checksum(found, payload)) fail("the message was damaged: its checksum is wrong");
  if (found.kind != expected.kind || found.setting != expected.setting || found.unused != 0)
    fail("the message was written by another codec, or one of other settings");
  if (found.count != expected.count) fail("the message holds {} values instead of {}", found.count, expected.count);
  return payload;
}

}  // namespace trireme
