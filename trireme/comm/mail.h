// Messages between single ranks. A message is a tensor with a header that says what it is; length and shape may differ
// from message to message. Messages from one rank to another arrive in the order in which they were sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/device/device.h"
#include "trireme/device/device_trace.h"

namespace trireme {

// What a message is for. The receiver waits for a tag, not for "the next message".
struct MessageTag {
  uint16_t kind = 0;  // forward, backward, …: whatever the users of a postbox agree on
  uint16_t part = 0;  // which tensor, where several travel between two ranks
  int32_t microbatch = 0;

  uint64_t key(int from) const {
    return static_cast<uint64_t>(from) << 48 | static_cast<uint64_t>(kind & 0xff) << 40 |
           static_cast<uint64_t>(part & 0xff) << 32 | static_cast<uint32_t>(microbatch);
  }
};

struct MessageHeader {
  static constexpr int most_dims = 6;

  MessageTag tag;
  uint64_t sequence = 0;  // of the messages from this sender to this receiver
  int64_t bytes = 0;
  int64_t sent_ns = 0;  // when it was handed over, by the sender's clock
  int64_t step = 0;
  at::ScalarType dtype = at::kFloat;
  int8_t dims = 0;
  int64_t sizes[most_dims] = {};

  at::IntArrayRef shape() const { return {sizes, static_cast<size_t>(dims)}; }
  // Fails unless the shape and the type are possible and make up the bytes: what another process wrote is not trusted
  // with this one's memory.
  void check(int from) const;
};

// Whom a rank will send to and receive from, and how large a message is at most as a rule; a larger one travels in
// pieces. `device` is where its tensors lie.
struct MailPeers {
  std::vector<int> to, from;
  int64_t message_bytes = 0;
  at::Device device = at::kCPU;
  bool on_cards = true;  // tensors of cards may be passed there, where that can be done
  DeviceTrace* trace = nullptr;
};

// Takes what arrives.
class MailHandler {
 public:
  virtual ~MailHandler() = default;
  // Memory of the host of header.bytes for a message that begins to arrive; it must stay until arrived() is called.
  virtual void* place_for(int from, const MessageHeader& header) = 0;
  virtual void arrived(int from, const MessageHeader& header) = 0;
  // A message that never touched the host.
  virtual void arrived(int from, const MessageHeader& header, PendingTensor tensor) = 0;
};

// The way that messages take. One thread at a time polls or sleeps; any thread may send.
class Mail {
 public:
  virtual ~Mail() = default;

  // Whether tensors of a card can be handed over to this rank as they are.
  virtual bool takes_device(int /*to*/) const { return false; }
  // Hands over a contiguous tensor: of the host, or of a card that the way takes, where `ready` is the work that makes
  // it. Its bytes are gone when this returns, or the tensor is kept until they are.
  virtual void send(int to, const MessageHeader& header, const at::Tensor& tensor, DeviceEvent ready) = 0;
  // Takes in what has come and pushes on what has not left yet; true when anything moved.
  virtual bool poll(MailHandler& handler) = 0;
  // Returns when something may have moved, at wake(), or at the deadline (of the monotonic clock).
  virtual void sleep(int64_t deadline_ns) = 0;
  virtual void wake() = 0;
};

}  // namespace trireme
