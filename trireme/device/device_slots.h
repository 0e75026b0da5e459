// Memory of a card in slots, through which one rank of a host passes tensors to another without touching the host: the
// receiver owns the memory, the sender copies into it (CUDA IPC between processes). Filling and emptying a slot are
// given to the cards' streams and waited for by nobody; events of both processes keep them in order. Who may use which
// slot is agreed elsewhere (comm/shared_mail): a slot may be filled again as soon as its emptying has been given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "trireme/device/card_memory.h"
#include "trireme/device/device.h"
#include "trireme/device/device_trace.h"

namespace trireme {

constexpr uint32_t device_slots = 4;

// How one end finds the other: plain bytes, valid in every process of the host while the end that wrote it lives.
struct SlotEnd {
  int64_t pid = 0;
  CardHandle memory;                // of the receiver
  void* events[device_slots] = {};  // addresses for an end in the same process, handles for the others
  std::byte event_handles[device_slots][64] = {};
};

class SlotReceiver {
 public:
  // Null where the driver does not let processes share a card's memory.
  static std::unique_ptr<SlotReceiver> make(at::Device device, int64_t slot_bytes, DeviceTrace* trace);
  ~SlotReceiver();

  const SlotEnd& end() const;
  void meet(const SlotEnd& sender);
  // The sender will not touch the memory any more: it is given back, and not kept until the process ends.
  void sender_left();

  // A tensor that emptied slots can go to.
  at::Tensor allocate(at::IntArrayRef shape, at::ScalarType dtype) const;
  // Copies a slot's bytes to a place in the tensor. The last piece of a message completes it.
  void empty(uint32_t slot, const at::Tensor& tensor, int64_t offset, int64_t bytes, const TraceSpan& about);
  DeviceEvent emptied() const;  // all that was given so far

 private:
  struct State;
  explicit SlotReceiver(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class SlotSender {
 public:
  // Null when the card of this rank cannot reach the receiver's memory.
  static std::unique_ptr<SlotSender> meet(at::Device device, const SlotEnd& receiver, int64_t slot_bytes,
                                          DeviceTrace* trace);
  ~SlotSender();

  const SlotEnd& end() const;

  // Copies a piece of the tensor into a slot, after the work that makes it.
  void fill(uint32_t slot, const at::Tensor& tensor, int64_t offset, int64_t bytes, const DeviceEvent& ready,
            const TraceSpan& about);

 private:
  struct State;
  explicit SlotSender(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace trireme
