// The kernels of fixed_format.h on a card, one pass each. Casts and decoding are element by element, four at a time
// where the memory is aligned. Encoding by blocks is a warp for each block: it finds the block's scale with its
// neighbours' help, and then reads the values again, from the nearest cache.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "trireme/codec/fixed_format.h"

namespace trireme {

namespace {

constexpr int threads = 256;
constexpr unsigned everybody = 0xffffffffu;
constexpr uint32_t infinity_bits = 0x7f800000u;

__device__ float finite_or_zero(float value) { return isfinite(value) ? value : 0.f; }

template <int width>
struct alignas(4 * width) Floats {
  float at[width];
};
template <int width>
struct alignas(2 * width) Halves {
  uint16_t at[width];
};

template <FixedKind kind>
__device__ uint16_t narrowed(float value) {
  if constexpr (kind == FixedKind::fp16) return __half_as_ushort(__float2half_rn(value));
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

template <FixedKind kind>
__device__ float widened(uint16_t bits) {
  if constexpr (kind == FixedKind::fp16) return __half2float(__ushort_as_half(bits));
  return __bfloat162float(__ushort_as_bfloat16(bits));
}

template <FixedKind kind, bool feedback, int width>
__global__ void encode_casts_kernel(const float* values, float* residual, uint16_t* codes, int64_t packs) {
  for (int64_t i = blockIdx.x * int64_t{threads} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * threads) {
    auto v = reinterpret_cast<const Floats<width>*>(values)[i];
    Floats<width> left{};
    if constexpr (feedback) left = reinterpret_cast<const Floats<width>*>(residual)[i];
    Halves<width> code;
    for (int k = 0; k < width; ++k) {
      if constexpr (feedback) v.at[k] += left.at[k];
      code.at[k] = narrowed<kind>(v.at[k]);
      if constexpr (feedback) left.at[k] = finite_or_zero(v.at[k] - widened<kind>(code.at[k]));
    }
    reinterpret_cast<Halves<width>*>(codes)[i] = code;
    if constexpr (feedback) reinterpret_cast<Floats<width>*>(residual)[i] = left;
  }
}

template <FixedKind kind, bool adding, int width>
__global__ void decode_casts_kernel(const uint16_t* codes, float* values, int64_t packs) {
  for (int64_t i = blockIdx.x * int64_t{threads} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * threads) {
    const auto code = reinterpret_cast<const Halves<width>*>(codes)[i];
    Floats<width> v{};
    if constexpr (adding) v = reinterpret_cast<const Floats<width>*>(values)[i];
    for (int k = 0; k < width; ++k) v.at[k] = adding ? v.at[k] + widened<kind>(code.at[k]) : widened<kind>(code.at[k]);
    reinterpret_cast<Floats<width>*>(values)[i] = v;
  }
}

__device__ int32_t warp_max(int32_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(everybody, value, offset));
  return value;
}

__device__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(everybody, value, offset);
  return value;
}

// A block as its warp sees it: lane l has the elements l, l + 32, … of it.
struct WarpBlock {
  const float* values;
  float* residual;
  int32_t count;
};

__device__ WarpBlock block_at(const FixedEncoding& work, int64_t block, int64_t size) {
  const int64_t first = block * size;
  return {work.values + first, work.residual ? work.residual + first : nullptr,
          static_cast<int32_t>(min(size, work.count - first))};
}

// What is said of element i; with a residual it lies there after the first look.
template <bool feedback>
__device__ float first_look(const WarpBlock& block, int32_t i) {
  if constexpr (!feedback) return block.values[i];
  return block.residual[i] = block.values[i] + block.residual[i];
}

// As on the host (integer_kernel.cpp), with the same roundings: a product and a sum are never one.
template <int levels, bool feedback, bool stochastic>
__device__ int32_t code_of(const WarpBlock& block, int32_t i, BlockScale scale, uint32_t draw) {
  const float v = feedback ? block.residual[i] : block.values[i];
  float t = __fmul_rn(v, scale.inverse);
  if constexpr (stochastic) {
    const float drawn = __fadd_rn(static_cast<float>(static_cast<int32_t>(draw)), 0.5f);
    t = __fadd_rn(t, __fadd_rn(__fmul_rn(drawn, 0x1p-16f), -0.5f));
  }
  int32_t code = __float2int_rn(t);
  if constexpr (stochastic) code = min(max(code, -levels), levels);
  if constexpr (feedback) block.residual[i] = __fadd_rn(v, -__fmul_rn(static_cast<float>(code), scale.scale));
  return code;
}

template <FixedKind kind, bool feedback, bool stochastic>
__device__ void encode_block(const WarpBlock& block, BlockScale scale, uint32_t noise, uint8_t* codes, int lane) {
  constexpr int levels = kind == FixedKind::int8 ? 127 : 7;
  const int32_t low = (block.count + 1) / 2, high = block.count / 2;
#pragma unroll 4
  for (int32_t j = lane; j < low; j += 32) {
    const uint32_t draws = stochastic ? rounding_bits(noise, static_cast<uint32_t>(j)) : 0;
    const int32_t one = code_of<levels, feedback, stochastic>(block, j, scale, draws >> 16);
    const int32_t other = j < high ? code_of<levels, feedback, stochastic>(block, j + low, scale, draws & 0xffff) : 0;
    if constexpr (kind == FixedKind::int8) {
      codes[j] = static_cast<uint8_t>(one);
      if (j < high) codes[j + low] = static_cast<uint8_t>(other);
    } else {
      codes[j] = static_cast<uint8_t>((one & 15) | (other & 15) << 4);
    }
  }
}

template <FixedKind kind, bool feedback, bool stochastic>
__global__ void encode_integers_kernel(const FixedEncoding work, int64_t size, int64_t code_bytes, int64_t blocks) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (threads / 32);
  for (int64_t b = blockIdx.x * int64_t{threads / 32} + threadIdx.x / 32; b < blocks; b += warps) {
    const auto block = block_at(work, b, size);
    int32_t largest = 0;
#pragma unroll 8
    for (int32_t i = lane; i < block.count; i += 32)
      largest = max(largest, __float_as_int(first_look<feedback>(block, i)) & 0x7fffffff);
    largest = warp_max(largest);
    const bool finite = largest < static_cast<int32_t>(infinity_bits);
    auto scale = BlockScale::of(__int_as_float(largest), kind == FixedKind::int8 ? 127 : 7);
    uint8_t* codes = work.codes + b * code_bytes;
    __syncwarp();  // element j + low is another lane's at the first look
    if (finite) {
      const uint32_t noise = stochastic ? block_noise(work.noise, work.first + b * size) : 0;
      encode_block<kind, feedback, stochastic>(block, scale, noise, codes, lane);
    } else {
      const int32_t bytes = kind == FixedKind::int8 ? block.count : (block.count + 1) / 2;
      for (int32_t i = lane; i < bytes; i += 32) codes[i] = 0;
      for (int32_t i = lane; feedback && i < block.count; i += 32) block.residual[i] = 0;
      scale.scale = __int_as_float(0x7fc00000);
    }
    if (lane == 0) reinterpret_cast<float*>(work.scales)[b] = scale.scale;
  }
}

template <bool feedback>
__global__ void encode_signs_kernel(const FixedEncoding work, int64_t size, int64_t code_bytes, int64_t blocks) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (threads / 32);
  for (int64_t b = blockIdx.x * int64_t{threads / 32} + threadIdx.x / 32; b < blocks; b += warps) {
    const auto block = block_at(work, b, size);
    const float share = 1 / static_cast<float>(block.count);
    float scale = 0;
#pragma unroll 8
    for (int32_t i = lane; i < block.count; i += 32) scale += fabsf(first_look<feedback>(block, i)) * share;
    scale = warp_sum(scale);
    const bool finite = isfinite(scale);
    if (!finite) scale = __int_as_float(0x7fc00000);
    const int32_t eighth = (block.count + 7) / 8;
    uint8_t* codes = work.codes + b * code_bytes;
    __syncwarp();
    for (int32_t j = lane; j < eighth; j += 32) {
      uint32_t byte = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int32_t i = j + k * eighth;
        if (i >= block.count) break;
        const float v = feedback ? block.residual[i] : block.values[i];
        const uint32_t sign = __float_as_uint(v) & 0x80000000u;
        byte |= sign >> 31 << k;
        if constexpr (feedback) block.residual[i] = finite ? v - __uint_as_float(__float_as_uint(scale) | sign) : 0.f;
      }
      codes[j] = static_cast<uint8_t>(byte);
    }
    if (lane == 0) reinterpret_cast<float*>(work.scales)[b] = scale;
  }
}

// What code number i of a block says.
template <FixedKind kind>
__device__ float said(const uint8_t* codes, int32_t i, int32_t count, float scale) {
  if constexpr (kind == FixedKind::int8) return static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
  if constexpr (kind == FixedKind::int4) {
    const int32_t low = (count + 1) / 2;
    const uint32_t byte = codes[i < low ? i : i - low];
    return static_cast<float>(static_cast<int32_t>(byte << (i < low ? 28 : 24)) >> 28) * scale;
  }
  const int32_t eighth = (count + 7) / 8;
  return __uint_as_float(__float_as_uint(scale) ^ (static_cast<uint32_t>(codes[i % eighth]) >> (i / eighth) << 31));
}

// Full blocks: four neighbours a thread, which lie in one block and in one part of it, as blocks are multiples of 32.
template <FixedKind kind, bool adding, int width>
__global__ void decode_blocks_kernel(const FixedDecoding work, int32_t size, int32_t code_bytes, int64_t packs) {
  for (int64_t p = blockIdx.x * int64_t{threads} + threadIdx.x; p < packs; p += int64_t{gridDim.x} * threads) {
    const int64_t first = p * width, block = first / size;
    const auto inside = static_cast<int32_t>(first - block * size);
    const auto count = static_cast<int32_t>(min(int64_t{size}, work.count - block * size));
    const float scale = reinterpret_cast<const float*>(work.scales)[block];
    const uint8_t* codes = work.codes + block * code_bytes;
    Floats<width> v{};
    if constexpr (adding) v = reinterpret_cast<const Floats<width>*>(work.values)[p];
    for (int k = 0; k < width; ++k) {
      const float value = said<kind>(codes, inside + k, count, scale);
      v.at[k] = adding ? __fadd_rn(v.at[k], value) : value;
    }
    reinterpret_cast<Floats<width>*>(work.values)[p] = v;
  }
}

bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

unsigned grid_for(int64_t work, int64_t a_grid_block) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + a_grid_block - 1) / a_grid_block, 1, 1 << 16));
}

template <FixedKind kind, bool feedback>
void encode_casts_on(const FixedEncoding& work, cudaStream_t stream) {
  auto* codes = reinterpret_cast<uint16_t*>(work.codes);
  const bool wide = aligned(work.values, 16) && aligned(work.residual, 16) && aligned(codes, 8);
  const int64_t packs = wide ? work.count / 4 : 0, done = 4 * packs, rest = work.count - done;
  if (packs > 0)
    encode_casts_kernel<kind, feedback, 4>
        <<<grid_for(packs, threads), threads, 0, stream>>>(work.values, work.residual, codes, packs);
  if (rest > 0)
    encode_casts_kernel<kind, feedback, 1><<<grid_for(rest, threads), threads, 0, stream>>>(
        work.values + done, work.residual ? work.residual + done : nullptr, codes + done, rest);
}

template <FixedKind kind, bool adding>
void decode_casts_on(const FixedDecoding& work, cudaStream_t stream) {
  const auto* codes = reinterpret_cast<const uint16_t*>(work.codes);
  const bool wide = aligned(work.values, 16) && aligned(codes, 8);
  const int64_t packs = wide ? work.count / 4 : 0, done = 4 * packs, rest = work.count - done;
  if (packs > 0)
    decode_casts_kernel<kind, adding, 4><<<grid_for(packs, threads), threads, 0, stream>>>(codes, work.values, packs);
  if (rest > 0)
    decode_casts_kernel<kind, adding, 1>
        <<<grid_for(rest, threads), threads, 0, stream>>>(codes + done, work.values + done, rest);
}

template <FixedKind kind>
void encode_integers_on(const FixedFormat& format, const FixedEncoding& work, cudaStream_t stream) {
  const int64_t blocks = format.blocks(work.count), bytes = format.code_bytes(format.block);
  const unsigned grid = grid_for(blocks, threads / 32);
  if (work.residual) {
    auto* kernel =
        format.stochastic ? encode_integers_kernel<kind, true, true> : encode_integers_kernel<kind, true, false>;
    kernel<<<grid, threads, 0, stream>>>(work, format.block, bytes, blocks);
  } else {
    auto* kernel =
        format.stochastic ? encode_integers_kernel<kind, false, true> : encode_integers_kernel<kind, false, false>;
    kernel<<<grid, threads, 0, stream>>>(work, format.block, bytes, blocks);
  }
}

template <FixedKind kind, bool adding>
void decode_blocks_on(const FixedFormat& format, const FixedDecoding& work, cudaStream_t stream) {
  const auto size = static_cast<int32_t>(format.block), bytes = static_cast<int32_t>(format.code_bytes(format.block));
  // The last block may be cut anywhere: it goes one by one.
  const int64_t full = format.block % 32 == 0 && aligned(work.values, 16) ? work.count / format.block : 0;
  if (full > 0)
    decode_blocks_kernel<kind, adding, 4>
        <<<grid_for(full * size / 4, threads), threads, 0, stream>>>(work, size, bytes, full * size / 4);
  auto rest = work;
  rest.count -= full * size;
  rest.values += full * size;
  rest.codes += full * bytes;
  rest.scales += 4 * full;
  if (rest.count > 0)
    decode_blocks_kernel<kind, adding, 1>
        <<<grid_for(rest.count, threads), threads, 0, stream>>>(rest, size, bytes, rest.count);
}

template <FixedKind kind>
void decode_on(const FixedFormat& format, const FixedDecoding& work, cudaStream_t stream) {
  if constexpr (kind == FixedKind::fp16 || kind == FixedKind::bf16) {
    work.adding ? decode_casts_on<kind, true>(work, stream) : decode_casts_on<kind, false>(work, stream);
  } else {
    work.adding ? decode_blocks_on<kind, true>(format, work, stream)
                : decode_blocks_on<kind, false>(format, work, stream);
  }
}

template <FixedKind kind>
void encode_on(const FixedFormat& format, const FixedEncoding& work, cudaStream_t stream) {
  if constexpr (kind == FixedKind::fp16 || kind == FixedKind::bf16) {
    work.residual ? encode_casts_on<kind, true>(work, stream) : encode_casts_on<kind, false>(work, stream);
  } else if constexpr (kind == FixedKind::sign) {
    auto* kernel = work.residual ? encode_signs_kernel<true> : encode_signs_kernel<false>;
    const int64_t blocks = format.blocks(work.count);
    kernel<<<grid_for(blocks, threads / 32), threads, 0, stream>>>(work, format.block, format.code_bytes(format.block),
                                                                   blocks);
  } else {
    encode_integers_on<kind>(format, work, stream);
  }
}

// The scales are whole floats of the message, so it must begin at one.
void check_message(const FixedFormat& format, const void* codes) {
  TORCH_CHECK(aligned(codes, format.scaled() ? 4 : 2), "a message on a card begins at a multiple of 4 bytes");
}

}  // namespace

void encode_fixed_cuda(const FixedFormat& format, const FixedEncoding& work, int card) {
  if (work.count == 0) return;
  check_message(format, work.codes);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(card));
  const auto stream = c10::cuda::getCurrentCUDAStream();
  switch (format.kind) {
    case FixedKind::fp16: encode_on<FixedKind::fp16>(format, work, stream); break;
    case FixedKind::bf16: encode_on<FixedKind::bf16>(format, work, stream); break;
    case FixedKind::int8: encode_on<FixedKind::int8>(format, work, stream); break;
    case FixedKind::int4: encode_on<FixedKind::int4>(format, work, stream); break;
    case FixedKind::sign: encode_on<FixedKind::sign>(format, work, stream); break;
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void decode_fixed_cuda(const FixedFormat& format, const FixedDecoding& work, int card) {
  if (work.count == 0) return;
  check_message(format, work.codes);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(card));
  const auto stream = c10::cuda::getCurrentCUDAStream();
  switch (format.kind) {
    case FixedKind::fp16: decode_on<FixedKind::fp16>(format, work, stream); break;
    case FixedKind::bf16: decode_on<FixedKind::bf16>(format, work, stream); break;
    case FixedKind::int8: decode_on<FixedKind::int8>(format, work, stream); break;
    case FixedKind::int4: decode_on<FixedKind::int4>(format, work, stream); break;
    case FixedKind::sign: decode_on<FixedKind::sign>(format, work, stream); break;
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace trireme
