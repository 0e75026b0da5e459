#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/combine_kernel.h"
#include "trireme/comm/memory_work.h"

namespace trireme {

namespace {

class CardWork final : public MemoryWork {
 public:
  explicit CardWork(at::Device device)
      : device_(device), stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {}

  void after(const DeviceEvent& event) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    event.block(device_);
    given_ = true;
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_));
    given_ = true;
  }

  void combine(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
               int64_t count) override {
    if (std::max(sources.size(), targets.size()) > most_card_buffers)
      fail("{} ranks share a card, which reduces at most {} buffers at once", sources.size(), most_card_buffers);
    const c10::cuda::CUDAGuard guard(device_);
    if (!combine_cuda(dtype, op, sources, targets, count, stream_.stream()))
      fail("tensors of type {} cannot be reduced", c10::toString(dtype));
    given_ = true;
  }

  void settle() override {
    if (!given_) return;
    const c10::cuda::CUDAStreamGuard guard(stream_);
    DeviceEvent done;
    done.record(device_);
    done.wait();
    given_ = false;
  }

 private:
  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  bool given_ = false;  // anything, since it was last settled
};

}  // namespace

std::unique_ptr<MemoryWork> make_card_work(at::Device device) { return std::make_unique<CardWork>(device); }

}  // namespace trireme
