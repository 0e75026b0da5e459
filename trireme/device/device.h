// What the rest of the program needs to know of a device, the same for CPU and CUDA: when work put on it is done, and
// memory of the host that it can copy to while it computes. On the CPU everything is simply complete.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace trireme {

// The device of a rank: cpu, or the CUDA device that a host's rank number `local_rank` gets. Refuses what is not there.
at::Device choose_device(bool cuda, int local_rank);

// "NVIDIA H200, 143.2 GB" or "CPU".
std::string describe(at::Device device);

bool cuda_available();

// A point in the work given to a device by the current thread's stream.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&&) noexcept;
  DeviceEvent& operator=(DeviceEvent&&) noexcept;

  void record(at::Device device);
  void wait();  // blocks the calling thread

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Waits until all work given to the device is done. For the ends of measurements, never inside a step.
void synchronize(at::Device device);

// A host tensor's copy on the device, complete when this returns; made on a stream of its own.
at::Tensor to_device(const at::Tensor& host, at::Device device);

// A tensor as the transports want it: on the host. A CPU tensor is passed through; a CUDA tensor is copied into pinned
// memory on a stream of its own, after the work that makes it, and write_back() returns it.
class StagedTensor {
 public:
  // `ready` was recorded after the work that makes the tensor.
  StagedTensor(const at::Tensor& tensor, DeviceEvent& ready);
  const at::Tensor& host() const { return host_; }
  void write_back();

 private:
  at::Tensor tensor_;
  at::Tensor host_;
};

}  // namespace trireme
