// What the rest of the program needs to know of a device, the same for CPU and CUDA: when work put on it is done, and
// memory of the host that it can copy to while it computes. On the CPU everything is simply complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme {

// The device of a rank: cpu, or the CUDA device that a host's rank number `local_rank` gets. Refuses what is not there.
at::Device choose_device(bool cuda, int local_rank);

// "NVIDIA H200, 143.2 GB" or "CPU".
std::string describe(at::Device device);

// The whole memory of each of this host's cards. No card is touched.
std::vector<int64_t> card_bytes();

bool cuda_available();

// Whether this many ranks of the host must share its cards.
bool shares_card(at::Device device, int local_ranks);

// A point in the work given to a device by the current thread's stream. Events of a card are taken from a pool and go
// back to it; on the CPU, and before it was recorded, an event is simply complete.
class DeviceEvent {
 public:
  struct State;

  DeviceEvent() = default;
  ~DeviceEvent() { release(); }
  DeviceEvent(DeviceEvent&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  DeviceEvent& operator=(DeviceEvent&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }

  void record(at::Device device);
  void wait() const;  // blocks the calling thread
  bool done() const;
  // What the calling thread gives to the device from now on begins after the event; the thread itself goes on.
  void block(at::Device device) const;

 private:
  void release();
  State* state_ = nullptr;
};

// A tensor that a copy on another stream may still be making.
struct PendingTensor {
  at::Tensor tensor;
  DeviceEvent ready;

  // The tensor for the calling thread's stream, which waits for the copy.
  at::Tensor take();
};

// Waits until all work given to the device is done. For the ends of measurements, never inside a step.
void synchronize(at::Device device);

// Copies on streams of their own that nobody waits for: to the card as soon as it can, and to pinned memory of the host
// after the work that makes the tensor. On the CPU the tensor itself.
PendingTensor to_device(const at::Tensor& host, at::Device device);
PendingTensor to_host(const at::Tensor& tensor, const DeviceEvent& ready);

// Memory of the host that a card can copy from and to by itself; plain memory where the device is the CPU.
at::Tensor host_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

// A tensor as the transports want it: on the host. A CPU tensor is passed through; a CUDA tensor is copied into pinned
// memory on a stream of its own, after the work that makes it, and write_back() returns it.
class StagedTensor {
 public:
  // `ready` was recorded after the work that makes the tensor.
  StagedTensor(const at::Tensor& tensor, const DeviceEvent& ready);
  const at::Tensor& host() const { return host_; }
  void write_back();

 private:
  at::Tensor tensor_;
  at::Tensor host_;
};

}  // namespace trireme
