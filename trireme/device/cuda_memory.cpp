#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>

#include "trireme/device/card_memory.h"

namespace trireme {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CardHandle::handle));

std::unique_ptr<CardMemory> CardMemory::make(c10::Device device, int64_t bytes) {
  const c10::cuda::CUDAGuard guard(device);
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  std::unique_ptr<CardMemory> made(new CardMemory(device, static_cast<std::byte*>(memory)));
  made->made_ = true;
  cudaIpcMemHandle_t handle;
  if (const auto code = cudaIpcGetMemHandle(&handle, memory); code == cudaErrorNotSupported) {
    cudaGetLastError();
    return nullptr;
  } else {
    C10_CUDA_CHECK(code);
  }
  C10_CUDA_CHECK(cudaMemset(memory, 0, static_cast<size_t>(bytes)));
  C10_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  made->handle_ = {getpid(), memory, {}};
  std::memcpy(made->handle_.handle, &handle, sizeof handle);
  return made;
}

std::unique_ptr<CardMemory> CardMemory::open(c10::Device device, const CardHandle& other) {
  const c10::cuda::CUDAGuard guard(device);
  void* memory = other.address;
  const bool here = other.pid == getpid();
  if (!here) {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, other.handle, sizeof handle);
    const auto code = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (code == cudaErrorPeerAccessUnsupported || code == cudaErrorTooManyPeers || code == cudaErrorInvalidDevice ||
        code == cudaErrorMapBufferObjectFailed) {
      cudaGetLastError();
      return nullptr;
    }
    C10_CUDA_CHECK(code);
  }
  std::unique_ptr<CardMemory> opened(new CardMemory(device, static_cast<std::byte*>(memory)));
  opened->opened_ = !here;
  opened->handle_ = other;
  return opened;
}

CardMemory::~CardMemory() {
  const c10::cuda::CUDAGuard guard(device_);
  if (made_ && !kept_) cudaFree(data_);
  if (opened_) cudaIpcCloseMemHandle(data_);
}

}  // namespace trireme
