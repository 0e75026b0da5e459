#include "trireme/codec/envelope.h"

#include <cstring>

#include "trireme/base/error.h"

namespace trireme {

namespace {

uint64_t checksum_of_all(Envelope envelope, const MessageSum& sum) {
  envelope.checksum = sum.value();
  return checksum_of({reinterpret_cast<const uint8_t*>(&envelope), sizeof envelope});
}

}  // namespace

void seal(Envelope envelope, MessageSum& sum, uint8_t* message) {
  sum.add({message + envelope_bytes + sum.added(), envelope.payload_bytes - sum.added()});
  envelope.checksum = checksum_of_all(envelope, sum);
  std::memcpy(message, &envelope, sizeof envelope);
}

Sealed::Sealed(const Envelope& expected, std::span<const uint8_t> message) {
  if (message.size() < sizeof(Envelope)) fail("a message of {} bytes is cut off within its header", message.size());
  std::memcpy(&found_, message.data(), sizeof found_);
  payload_ = message.subspan(sizeof(Envelope));
  if (found_.mark != Envelope::own_mark) fail("these bytes are no codec's message");
  if (found_.version != Envelope::own_version)
    fail("the message is of version {}, and this program reads version {}", found_.version, Envelope::own_version);
  if (found_.payload_bytes != payload_.size())
    fail("the message has {} bytes behind its header, which tells of {}", payload_.size(), found_.payload_bytes);
  if (found_.kind != expected.kind || found_.setting != expected.setting || found_.unused != 0)
    fail("the message was written by another codec, or one of other settings");
  if (found_.count != expected.count) fail("the message holds {} values instead of {}", found_.count, expected.count);
}

void Sealed::check() {
  pass(payload_.size());
  if (found_.checksum != checksum_of_all(found_, sum_)) fail("the message was damaged: its checksum is wrong");
}

}  // namespace trireme
