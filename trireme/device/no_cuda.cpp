// Takes the place of cuda.cpp, cuda_memory.cpp, cuda_slots.cpp and cuda_trace.cpp where LibTorch is a CPU build.
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/device/device.h"
#include "trireme/device/device_slots.h"
#include "trireme/device/device_trace.h"

namespace trireme {

at::Device choose_device(bool cuda, int) {
  if (cuda)
    refuse(
        "train.device = cuda, but this build has no CUDA: build on a machine whose LibTorch has it, or use "
        "train.device=cpu");
  return at::kCPU;
}

std::string describe(at::Device) { return "CPU"; }
std::vector<int64_t> card_bytes() { return {}; }
bool cuda_available() { return false; }
bool shares_card(at::Device, int) { return false; }

struct DeviceEvent::State {};
void DeviceEvent::release() {}
void DeviceEvent::record(at::Device) {}
void DeviceEvent::wait() const {}
bool DeviceEvent::done() const { return true; }
void DeviceEvent::block(at::Device) const {}

at::Tensor PendingTensor::take() { return std::move(tensor); }

void synchronize(at::Device) {}
PendingTensor to_device(const at::Tensor& host, at::Device) { return {host, {}}; }
PendingTensor to_host(const at::Tensor& tensor, const DeviceEvent&) { return {tensor, {}}; }
at::Tensor host_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device) {
  return at::empty(shape, at::TensorOptions().dtype(dtype));
}

StagedTensor::StagedTensor(const at::Tensor& tensor, const DeviceEvent&) : tensor_(tensor), host_(tensor) {}
void StagedTensor::write_back() {}

// Without cards there is no memory on them to share, and there are no slots: nobody comes here.
std::unique_ptr<CardMemory> CardMemory::make(c10::Device, int64_t) { return nullptr; }
std::unique_ptr<CardMemory> CardMemory::open(c10::Device, const CardHandle&) { return nullptr; }
CardMemory::~CardMemory() = default;

struct SlotReceiver::State {
  SlotEnd end;
};
SlotReceiver::SlotReceiver(std::unique_ptr<State> state) : state_(std::move(state)) {}
std::unique_ptr<SlotReceiver> SlotReceiver::make(at::Device, int64_t, DeviceTrace*) { return nullptr; }
SlotReceiver::~SlotReceiver() = default;
const SlotEnd& SlotReceiver::end() const { return state_->end; }
void SlotReceiver::meet(const SlotEnd&) {}
void SlotReceiver::sender_left() {}
at::Tensor SlotReceiver::allocate(at::IntArrayRef, at::ScalarType) const { return {}; }
void SlotReceiver::empty(uint32_t, const at::Tensor&, int64_t, int64_t, const TraceSpan&) {}
DeviceEvent SlotReceiver::emptied() const { return {}; }

struct SlotSender::State {
  SlotEnd end;
};
SlotSender::SlotSender(std::unique_ptr<State> state) : state_(std::move(state)) {}
SlotSender::~SlotSender() = default;
std::unique_ptr<SlotSender> SlotSender::meet(at::Device, const SlotEnd&, int64_t, DeviceTrace*) { return nullptr; }
const SlotEnd& SlotSender::end() const { return state_->end; }
void SlotSender::fill(uint32_t, const at::Tensor&, int64_t, int64_t, const DeviceEvent&, const TraceSpan&) {}

struct DeviceTrace::State {};
DeviceTrace::DeviceTrace(at::Device, const Recorder&) {}
DeviceTrace::~DeviceTrace() = default;
void DeviceTrace::settle() {}
struct DeviceSpan::Marks {};
DeviceSpan::DeviceSpan(DeviceTrace*, const TraceSpan&) {}
DeviceSpan::~DeviceSpan() = default;

}  // namespace trireme
