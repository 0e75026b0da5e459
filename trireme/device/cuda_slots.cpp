#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/device/device_slots.h"

namespace trireme {

namespace {

static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(SlotEnd::event_handles[0]));

// The events of one end, which records them; the other end waits for them.
struct Events {
  cudaEvent_t event[device_slots] = {};

  void create(SlotEnd& end) {
    for (uint32_t i = 0; i < device_slots; ++i) {
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event[i], cudaEventDisableTiming | cudaEventInterprocess));
      cudaIpcEventHandle_t handle;
      C10_CUDA_CHECK(cudaIpcGetEventHandle(&handle, event[i]));
      std::memcpy(end.event_handles[i], &handle, sizeof handle);
      end.events[i] = event[i];
    }
  }

  void open(const SlotEnd& end) {
    for (uint32_t i = 0; i < device_slots; ++i) {
      if (end.pid == getpid()) {
        event[i] = static_cast<cudaEvent_t>(end.events[i]);
        continue;
      }
      cudaIpcEventHandle_t handle;
      std::memcpy(&handle, end.event_handles[i], sizeof handle);
      C10_CUDA_CHECK(cudaIpcOpenEventHandle(&event[i], handle));
    }
  }

  void destroy() {
    for (auto& one : event) {
      if (one) cudaEventDestroy(one);
    }
  }
};

// What both ends have: a card, a stream for their copies, and what the other end must know.
struct CopyingEnd {
  CopyingEnd(at::Device device, int64_t slot_bytes, DeviceTrace* trace)
      : device(device),
        slot_bytes(slot_bytes),
        trace(trace),
        stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {}

  const at::Device device;
  const int64_t slot_bytes;
  DeviceTrace* const trace;
  const c10::cuda::CUDAStream stream;
  std::unique_ptr<CardMemory> memory;  // of the receiver
  Events filled, emptied;              // recorded by the sender, and by the receiver
  SlotEnd end;
};

}  // namespace

struct SlotReceiver::State : CopyingEnd {
  using CopyingEnd::CopyingEnd;
  bool met = false, sender_here = false, sender_left = false;
};

SlotReceiver::SlotReceiver(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<SlotReceiver> SlotReceiver::make(at::Device device, int64_t slot_bytes, DeviceTrace* trace) {
  auto state = std::make_unique<State>(device, slot_bytes, trace);
  const c10::cuda::CUDAGuard guard(device);
  state->memory = CardMemory::make(device, slot_bytes * device_slots);
  if (!state->memory) return nullptr;
  state->end.memory = state->memory->handle();
  state->end.pid = getpid();
  state->emptied.create(state->end);
  return std::unique_ptr<SlotReceiver>(new SlotReceiver(std::move(state)));
}

SlotReceiver::~SlotReceiver() {
  const c10::cuda::CUDAGuard guard(state_->device);
  if (state_->met && !state_->sender_left) {
    state_->memory->keep(true);
    return;
  }
  state_->emptied.destroy();
  if (!state_->sender_here) state_->filled.destroy();
}

const SlotEnd& SlotReceiver::end() const { return state_->end; }
void SlotReceiver::sender_left() { state_->sender_left = true; }

void SlotReceiver::meet(const SlotEnd& sender) {
  if (state_->met) return;
  const c10::cuda::CUDAGuard guard(state_->device);
  state_->filled.open(sender);
  state_->sender_here = sender.pid == getpid();
  state_->met = true;
}

at::Tensor SlotReceiver::allocate(at::IntArrayRef shape, at::ScalarType dtype) const {
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  return at::empty(shape, at::TensorOptions().dtype(dtype).device(state_->device));
}

void SlotReceiver::empty(uint32_t slot, const at::Tensor& tensor, int64_t offset, int64_t bytes,
                         const TraceSpan& about) {
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  C10_CUDA_CHECK(cudaStreamWaitEvent(state_->stream, state_->filled.event[slot]));
  if (bytes > 0) {
    const DeviceSpan span(state_->trace, about);
    C10_CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(tensor.data_ptr()) + offset,
                                   state_->memory->data() + slot * state_->slot_bytes, static_cast<size_t>(bytes),
                                   cudaMemcpyDefault, state_->stream));
  }
  C10_CUDA_CHECK(cudaEventRecord(state_->emptied.event[slot], state_->stream));
}

DeviceEvent SlotReceiver::emptied() const {
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  DeviceEvent event;
  event.record(state_->device);
  return event;
}

struct SlotSender::State : CopyingEnd {
  using CopyingEnd::CopyingEnd;
  bool receiver_here = false;
};

SlotSender::SlotSender(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<SlotSender> SlotSender::meet(at::Device device, const SlotEnd& receiver, int64_t slot_bytes,
                                             DeviceTrace* trace) {
  auto state = std::make_unique<State>(device, slot_bytes, trace);
  const c10::cuda::CUDAGuard guard(device);
  state->receiver_here = receiver.pid == getpid();
  state->memory = CardMemory::open(device, receiver.memory);
  if (!state->memory) return nullptr;
  state->emptied.open(receiver);
  state->end.pid = getpid();
  state->filled.create(state->end);
  return std::unique_ptr<SlotSender>(new SlotSender(std::move(state)));
}

SlotSender::~SlotSender() {
  const c10::cuda::CUDAGuard guard(state_->device);
  cudaStreamSynchronize(state_->stream);
  if (!state_->receiver_here) state_->emptied.destroy();
  // `filled` is left to the process's end: the receiver may not have waited for it yet.
}

const SlotEnd& SlotSender::end() const { return state_->end; }

void SlotSender::fill(uint32_t slot, const at::Tensor& tensor, int64_t offset, int64_t bytes, const DeviceEvent& ready,
                      const TraceSpan& about) {
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  ready.block(state_->device);
  C10_CUDA_CHECK(cudaStreamWaitEvent(state_->stream, state_->emptied.event[slot]));
  if (bytes > 0) {
    const DeviceSpan span(state_->trace, about);
    C10_CUDA_CHECK(cudaMemcpyAsync(state_->memory->data() + slot * state_->slot_bytes,
                                   static_cast<const std::byte*>(tensor.const_data_ptr()) + offset,
                                   static_cast<size_t>(bytes), cudaMemcpyDefault, state_->stream));
    c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), state_->stream);
  }
  C10_CUDA_CHECK(cudaEventRecord(state_->filled.event[slot], state_->stream));
}

}  // namespace trireme
