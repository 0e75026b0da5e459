#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

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
  // fp32 means fp32: in TF32 convolutions keep ten bits of their factors.
  at::globalContext().setAllowTF32CuDNN(false);
  return device;
}

std::string describe(at::Device device) {
  if (!device.is_cuda()) return "CPU";
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return fmt::format("{}, {}", properties->name, human_bytes(static_cast<double>(properties->totalGlobalMem)));
}

std::vector<int64_t> card_bytes() {
  std::vector<int64_t> all;
  for (c10::DeviceIndex card = 0; card < c10::cuda::device_count(); ++card)
    all.push_back(static_cast<int64_t>(at::cuda::getDeviceProperties(card)->totalGlobalMem));
  return all;
}

bool cuda_available() { return c10::cuda::device_count() > 0; }
bool shares_card(at::Device device, int local_ranks) {
  return device.is_cuda() && local_ranks > c10::cuda::device_count();
}

// Without timing, and such that a thread that waits sleeps.
struct DeviceEvent::State {
  c10::DeviceIndex device = 0;
  cudaEvent_t event = nullptr;
};

namespace {

// Events that nobody uses now; never destroyed, as the driver may be gone before the last of them.
struct EventPool {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceEvent::State>> spare;
};

EventPool& event_pool() {
  static auto& pool = *new EventPool;
  return pool;
}

c10::cuda::CUDAStream copy_stream(at::Device device) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index());
}

}  // namespace

void DeviceEvent::release() {
  if (!state_) return;
  auto& pool = event_pool();
  std::lock_guard lock(pool.mutex);
  pool.spare.emplace_back(std::exchange(state_, nullptr));
}

void DeviceEvent::record(at::Device device) {
  if (!device.is_cuda()) return;
  if (state_ && state_->device != device.index()) release();
  if (!state_) {
    auto& pool = event_pool();
    std::lock_guard lock(pool.mutex);
    const auto found = std::find_if(pool.spare.begin(), pool.spare.end(),
                                    [&](const auto& one) { return one->device == device.index(); });
    if (found != pool.spare.end()) {
      state_ = found->release();
      pool.spare.erase(found);
    }
  }
  const c10::cuda::CUDAGuard guard(device);
  if (!state_) {
    auto fresh = std::make_unique<State>(State{device.index(), nullptr});
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&fresh->event, cudaEventDisableTiming | cudaEventBlockingSync));
    state_ = fresh.release();
  }
  C10_CUDA_CHECK(cudaEventRecord(state_->event, c10::cuda::getCurrentCUDAStream(device.index())));
}

void DeviceEvent::wait() const {
  if (state_) C10_CUDA_CHECK(cudaEventSynchronize(state_->event));
}

bool DeviceEvent::done() const {
  if (!state_) return true;
  const auto code = cudaEventQuery(state_->event);
  if (code == cudaErrorNotReady) return false;
  C10_CUDA_CHECK(code);
  return true;
}

void DeviceEvent::block(at::Device device) const {
  if (!state_ || !device.is_cuda()) return;
  const c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(device.index()), state_->event));
}

at::Tensor PendingTensor::take() {
  if (tensor.defined() && tensor.is_cuda()) {
    ready.block(tensor.device());
    // Its memory belongs to the stream of the copy: it may be used again only when this stream is done with it too.
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(),
                                                  c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  }
  ready = {};
  return std::move(tensor);
}

void synchronize(at::Device device) {
  if (device.is_cuda()) c10::cuda::device_synchronize();
}

at::Tensor host_memory(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(device.is_cuda()));
}

PendingTensor to_device(const at::Tensor& host, at::Device device) {
  if (!device.is_cuda()) return {host, {}};
  const c10::cuda::CUDAStreamGuard guard(copy_stream(device));
  PendingTensor pending{host.to(device, /*non_blocking=*/true), {}};
  pending.ready.record(device);
  return pending;
}

PendingTensor to_host(const at::Tensor& tensor, const DeviceEvent& ready) {
  if (!tensor.is_cuda()) return {tensor, {}};
  const c10::cuda::CUDAStreamGuard guard(copy_stream(tensor.device()));
  ready.block(tensor.device());
  PendingTensor pending{host_memory(tensor.sizes(), tensor.scalar_type(), tensor.device()), {}};
  pending.tensor.copy_(tensor, /*non_blocking=*/true);
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(),
                                                c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  pending.ready.record(tensor.device());
  return pending;
}

StagedTensor::StagedTensor(const at::Tensor& tensor, const DeviceEvent& ready) : tensor_(tensor), host_(tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return;
  const auto staged = to_host(tensor, ready);
  staged.ready.wait();
  host_ = staged.tensor;
}

void StagedTensor::write_back() {
  if (!tensor_.defined() || !tensor_.is_cuda()) return;
  const c10::cuda::CUDAStreamGuard guard(copy_stream(tensor_.device()));
  tensor_.copy_(host_, /*non_blocking=*/true);
  DeviceEvent written;
  written.record(tensor_.device());
  written.wait();
}

}  // namespace trireme
