// Takes the place of cuda.cpp where LibTorch is a CPU build.
#include "trireme/base/error.h"
#include "trireme/device/device.h"

namespace trireme {

at::Device choose_device(bool cuda, int) {
  if (cuda)
    refuse(
        "train.device = cuda, but this build has no CUDA: build on a machine whose LibTorch has it, or use "
        "train.device=cpu");
  return at::kCPU;
}

std::string describe(at::Device) { return "CPU"; }
bool cuda_available() { return false; }

struct DeviceEvent::State {};
DeviceEvent::DeviceEvent() = default;
DeviceEvent::~DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;
void DeviceEvent::record(at::Device) {}
void DeviceEvent::wait() {}

void synchronize(at::Device) {}
at::Tensor to_device(const at::Tensor& host, at::Device) { return host; }

StagedTensor::StagedTensor(const at::Tensor& tensor, DeviceEvent&) : tensor_(tensor), host_(tensor) {}
void StagedTensor::write_back() {}

}  // namespace trireme
