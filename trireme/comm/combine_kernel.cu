#include <c10/cuda/CUDAException.h>

#include <algorithm>

#include "trireme/comm/combine.h"
#include "trireme/comm/combine_kernel.h"

namespace trireme {

namespace {

struct Buffers {
  const void* sources[most_card_buffers];
  void* targets[most_card_buffers];
  int source_count, target_count;
};

// `width` elements that are read and written at once.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T values[width];
};

// One pass: every source is read once, in the order of the ranks, and every target written once.
template <class T, ReduceOp op, int width>
__global__ void combine_kernel(const Buffers buffers, int64_t first, int64_t packs) {
  using P = Pack<T, width>;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * blockDim.x) {
    Wide<T> sums[width];
    P pack = reinterpret_cast<const P*>(static_cast<const T*>(buffers.sources[0]) + first)[i];
    for (int k = 0; k < width; ++k) sums[k] = static_cast<Wide<T>>(pack.values[k]);
    for (int rank = 1; rank < buffers.source_count; ++rank) {
      pack = reinterpret_cast<const P*>(static_cast<const T*>(buffers.sources[rank]) + first)[i];
      for (int k = 0; k < width; ++k) sums[k] = combined<op>(sums[k], static_cast<Wide<T>>(pack.values[k]));
    }
    for (int k = 0; k < width; ++k) pack.values[k] = narrowed<T>(sums[k]);
    for (int rank = 0; rank < buffers.target_count; ++rank)
      reinterpret_cast<P*>(static_cast<T*>(buffers.targets[rank]) + first)[i] = pack;
  }
}

struct Launch {
  Buffers buffers;
  int64_t count;
  cudaStream_t stream;

  template <class T, ReduceOp op, int width>
  void launch(int64_t first, int64_t packs) const {
    if (packs == 0) return;
    constexpr int threads = 256;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>((packs + threads - 1) / threads, 2048));
    combine_kernel<T, op, width><<<blocks, threads, 0, stream>>>(buffers, first, packs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <class T, ReduceOp op>
  void operator()() const {
    constexpr int width = 16 / sizeof(T);
    bool aligned = true;
    for (int i = 0; i < buffers.source_count; ++i)
      aligned = aligned && reinterpret_cast<uintptr_t>(buffers.sources[i]) % 16 == 0;
    for (int i = 0; i < buffers.target_count; ++i)
      aligned = aligned && reinterpret_cast<uintptr_t>(buffers.targets[i]) % 16 == 0;
    const int64_t packs = aligned ? count / width : 0;
    launch<T, op, width>(0, packs);
    launch<T, op, 1>(packs * width, count - packs * width);
  }
};

}  // namespace

bool combine_cuda(at::ScalarType dtype, ReduceOp op, std::span<const void* const> sources,
                  std::span<void* const> targets, int64_t count, void* stream) {
  Launch launch{{}, count, static_cast<cudaStream_t>(stream)};
  std::copy(sources.begin(), sources.end(), launch.buffers.sources);
  std::copy(targets.begin(), targets.end(), launch.buffers.targets);
  launch.buffers.source_count = static_cast<int>(sources.size());
  launch.buffers.target_count = static_cast<int>(targets.size());
  return visit_reduction(dtype, op, launch);
}

}  // namespace trireme
