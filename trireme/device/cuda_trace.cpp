#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "trireme/device/device_trace.h"

namespace trireme {

namespace {

cudaEvent_t mark(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  cudaEvent_t event;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDefault));
  C10_CUDA_CHECK(cudaEventRecord(event, c10::cuda::getCurrentCUDAStream(device.index())));
  return event;
}

}  // namespace

struct DeviceSpan::Marks {
  TraceSpan about;
  cudaEvent_t begin = nullptr, end = nullptr;
};

struct DeviceTrace::State {
  at::Device device;
  const Recorder& recorder;
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceSpan::Marks>> marked;
};

DeviceTrace::DeviceTrace(at::Device device, const Recorder& recorder) : state_(new State{device, recorder, {}, {}}) {}
DeviceTrace::~DeviceTrace() = default;

// The card's marks tell times between them; one more, taken now beside this host's clock, tells when they were.
void DeviceTrace::settle() {
  std::lock_guard lock(state_->mutex);
  if (state_->marked.empty()) return;
  const c10::cuda::CUDAGuard guard(state_->device);
  c10::cuda::device_synchronize();
  const cudaEvent_t now = mark(state_->device);
  C10_CUDA_CHECK(cudaEventSynchronize(now));
  const int64_t now_ns = monotonic_ns();
  const auto time_of = [&](cudaEvent_t event) {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event, now));
    cudaEventDestroy(event);
    return now_ns - static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  };
  for (auto& marks : state_->marked) {
    marks->about.begin_ns = time_of(marks->begin);
    marks->about.end_ns = time_of(marks->end);
    if (auto* trace = state_->recorder.trace()) trace->add(marks->about);
  }
  cudaEventDestroy(now);
  state_->marked.clear();
}

DeviceSpan::DeviceSpan(DeviceTrace* trace, const TraceSpan& about) {
  if (!trace || !trace->state_->device.is_cuda() || !trace->state_->recorder.trace()) return;
  trace_ = trace;
  marks_ = std::make_unique<Marks>(Marks{about, mark(trace->state_->device), nullptr});
}

DeviceSpan::~DeviceSpan() {
  if (!trace_) return;
  marks_->end = mark(trace_->state_->device);
  std::lock_guard lock(trace_->state_->mutex);
  trace_->state_->marked.push_back(std::move(marks_));
}

}  // namespace trireme
