#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/device/device.h"

namespace trireme {

at::Device choose_device(bool cuda, int local_rank) {
  if (!cuda) return at::kCPU;
  const int count = c10::cuda::device_count();
  if (count == 0)
    refuse("train.device = cuda, but this machine shows no CUDA device: check nvidia-smi, or use train.device=cpu");
  // More ranks than cards share them in turn.
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank % count));
  c10::cuda::set_device(device.index());
  return device;
}

std::string describe(at::Device device) {
  if (!device.is_cuda()) return "CPU";
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return fmt::format("{}, {}", properties->name, human_bytes(static_cast<double>(properties->totalGlobalMem)));
}

bool cuda_available() { return c10::cuda::device_count() > 0; }

struct DeviceEvent::State {
  at::cuda::CUDAEvent event;
  bool recorded = false;
};

DeviceEvent::DeviceEvent() = default;
DeviceEvent::~DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;

void DeviceEvent::record(at::Device device) {
  if (!device.is_cuda()) return;
  if (!state_) state_ = std::make_unique<State>();
  state_->event.record(c10::cuda::getCurrentCUDAStream(device.index()));
  state_->recorded = true;
}

void DeviceEvent::wait() {
  if (state_ && state_->recorded) state_->event.synchronize();
}

void synchronize(at::Device device) {
  if (device.is_cuda()) c10::cuda::device_synchronize();
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (!device.is_cuda()) return host;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  auto copy = host.to(device, /*non_blocking=*/true);
  c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
  return copy;
}

StagedTensor::StagedTensor(const at::Tensor& tensor, DeviceEvent& ready) : tensor_(tensor), host_(tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  // On a stream of its own, after the work that made the tensor but beside what was given to the card since.
  ready.wait();
  const c10::cuda::CUDAStreamGuard guard(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, tensor.device().index()));
  host_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(tensor, /*non_blocking=*/true);
  c10::cuda::getCurrentCUDAStream(tensor.device().index()).synchronize();
}

void StagedTensor::write_back() {
  if (!tensor_.defined() || !tensor_.is_cuda()) return;
  const c10::cuda::CUDAStreamGuard guard(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, tensor_.device().index()));
  tensor_.copy_(host_, /*non_blocking=*/true);
  c10::cuda::getCurrentCUDAStream(tensor_.device().index()).synchronize();
}

}  // namespace trireme
