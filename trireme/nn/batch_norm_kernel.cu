#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "trireme/nn/batch_norm_kernel.h"

namespace trireme {

namespace {

constexpr int block_threads = 256;

// Channels of one row that a thread takes at once: 16 bytes, one load; or one channel where they do not divide.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T values[width];
};

// Threads side by side take the channels of a row, those below each other the rows, from block to block. Each stays
// with its channels, so what belongs to them lies in registers.
struct Tiles {
  int64_t rows, channels;
  dim3 grid, block;

  Tiles(const at::Tensor& x, int width) : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    const int64_t groups = channels / width;
    unsigned across = 1;
    while (across < 32 && across < groups) across *= 2;
    block = dim3(across, block_threads / across);
    grid.x = static_cast<unsigned>((groups + across - 1) / across);
    // Eight blocks for every processor are enough to keep memory busy.
    int processors = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, x.device().index()));
    const unsigned wanted = 8 * static_cast<unsigned>(processors);
    const auto possible = static_cast<unsigned>((rows + block.y - 1) / block.y);
    grid.y = std::max(1u, std::min(possible, (wanted + grid.x - 1) / grid.x));
  }
};

// A number for each of a thread's channels.
template <class Math, int width>
struct Numbers {
  Math values[width];

  __device__ Numbers(const double* from, int64_t first) {
    for (int i = 0; i < width; ++i) values[i] = static_cast<Math>(from[first + i]);
  }
  __device__ Math operator[](int i) const { return values[i]; }
};

// Two numbers a channel, summed over the block's rows in a fixed order, to partial [gridDim.y, 2, channels].
template <class Math, int width>
__device__ void sum_block(const Math* first, const Math* second, double* partial, int64_t channels, int64_t channel) {
  __shared__ Math shared[2 * width * block_threads];
  const int across = blockDim.x, down = blockDim.y;
  const auto place = [&](int y, int i) { return (i * down + y) * across + threadIdx.x; };
  for (int i = 0; i < width; ++i) {
    shared[place(threadIdx.y, i)] = first[i];
    shared[place(threadIdx.y, width + i)] = second[i];
  }
  __syncthreads();
  for (int i = threadIdx.y; i < 2 * width; i += down) {
    double sum = 0;
    for (int y = 0; y < down; ++y) sum += static_cast<double>(shared[place(y, i)]);
    if (channel < channels) partial[(blockIdx.y * 2 + i / width) * channels + channel + i % width] = sum;
  }
}

// Sums of x - pivot and of its square; the pivot is the first row, so that little is lost where a mean is far from 0.
template <class T, int width>
__global__ void moments_kernel(const T* __restrict__ x, double* partial, int64_t rows, int64_t channels) {
  using Math = at::opmath_type<T>;
  using Packed = Pack<T, width>;
  const int64_t channel = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  Math sums[width] = {}, squares[width] = {};
  if (channel < channels) {
    const auto pivot = *reinterpret_cast<const Packed*>(x + channel);
    const int64_t step = int64_t{gridDim.y} * blockDim.y;
#pragma unroll 4
    for (int64_t row = blockIdx.y * int64_t{blockDim.y} + threadIdx.y; row < rows; row += step) {
      const auto here = *reinterpret_cast<const Packed*>(x + row * channels + channel);
      for (int i = 0; i < width; ++i) {
        const Math deviation = static_cast<Math>(here.values[i]) - static_cast<Math>(pivot.values[i]);
        sums[i] += deviation;
        squares[i] += deviation * deviation;
      }
    }
  }
  sum_block<Math, width>(sums, squares, partial, channels, channel);
}

template <class T, int width, bool relu, bool residual>
__global__ void scale_kernel(const T* __restrict__ x, const T* __restrict__ added, T* __restrict__ y,
                             const double* mean, const double* scale, const double* shift, int64_t rows,
                             int64_t channels) {
  using Math = at::opmath_type<T>;
  using Packed = Pack<T, width>;
  const int64_t channel = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  if (channel >= channels) return;
  const Numbers<Math, width> m(mean, channel), a(scale, channel), b(shift, channel);
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
#pragma unroll 4
  for (int64_t row = blockIdx.y * int64_t{blockDim.y} + threadIdx.y; row < rows; row += step) {
    const int64_t at = row * channels + channel;
    const auto here = *reinterpret_cast<const Packed*>(x + at);
    Packed also, out;
    if constexpr (residual) also = *reinterpret_cast<const Packed*>(added + at);
    for (int i = 0; i < width; ++i) {
      Math value = (static_cast<Math>(here.values[i]) - m[i]) * a[i] + b[i];
      if constexpr (residual) value += static_cast<Math>(also.values[i]);
      if constexpr (relu) value = value > Math{0} ? value : Math{0};
      out.values[i] = static_cast<T>(value);
    }
    *reinterpret_cast<Packed*>(y + at) = out;
  }
}

// `residual`: what passed is where y is above 0, and is written down.
template <class T, int width, bool relu, bool residual>
__global__ void sums_kernel(const T* __restrict__ g, const T* __restrict__ x, const T* __restrict__ y,
                            T* __restrict__ passed, double* partial, const double* mean, const double* scale,
                            const double* shift, int64_t rows, int64_t channels) {
  using Math = at::opmath_type<T>;
  using Packed = Pack<T, width>;
  const int64_t channel = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  Math sums[width] = {}, products[width] = {};
  if (channel < channels) {
    const Numbers<Math, width> m(mean, channel), a(scale, channel), b(shift, channel);
    const int64_t step = int64_t{gridDim.y} * blockDim.y;
#pragma unroll 4
    for (int64_t row = blockIdx.y * int64_t{blockDim.y} + threadIdx.y; row < rows; row += step) {
      const int64_t at = row * channels + channel;
      const auto back = *reinterpret_cast<const Packed*>(g + at), here = *reinterpret_cast<const Packed*>(x + at);
      Packed forward, kept;
      if constexpr (residual) forward = *reinterpret_cast<const Packed*>(y + at);
      for (int i = 0; i < width; ++i) {
        const Math deviation = static_cast<Math>(here.values[i]) - m[i];
        Math value = static_cast<Math>(back.values[i]);
        if constexpr (residual) value = static_cast<Math>(forward.values[i]) > Math{0} ? value : Math{0};
        if constexpr (relu && !residual) value = deviation * a[i] + b[i] > Math{0} ? value : Math{0};
        if constexpr (residual) kept.values[i] = static_cast<T>(value);
        sums[i] += value;
        products[i] += value * deviation;
      }
      if constexpr (residual) *reinterpret_cast<Packed*>(passed + at) = kept;
    }
  }
  sum_block<Math, width>(sums, products, partial, channels, channel);
}

template <class T, int width, bool relu>
__global__ void gradient_kernel(const T* __restrict__ g, const T* __restrict__ x, T* __restrict__ out,
                                const double* mean, const double* scale, const double* shift, const double* slope,
                                const double* offset, int64_t rows, int64_t channels) {
  using Math = at::opmath_type<T>;
  using Packed = Pack<T, width>;
  const int64_t channel = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) * width;
  if (channel >= channels) return;
  const Numbers<Math, width> m(mean, channel), a(scale, channel), b(shift, channel);
  const Numbers<Math, width> s(slope, channel), o(offset, channel);
  const int64_t step = int64_t{gridDim.y} * blockDim.y;
#pragma unroll 4
  for (int64_t row = blockIdx.y * int64_t{blockDim.y} + threadIdx.y; row < rows; row += step) {
    const int64_t at = row * channels + channel;
    const auto back = *reinterpret_cast<const Packed*>(g + at), here = *reinterpret_cast<const Packed*>(x + at);
    Packed result;
    for (int i = 0; i < width; ++i) {
      const Math deviation = static_cast<Math>(here.values[i]) - m[i];
      Math value = static_cast<Math>(back.values[i]);
      if constexpr (relu) value = deviation * a[i] + b[i] > Math{0} ? value : Math{0};
      result.values[i] = static_cast<T>(value * a[i] + deviation * s[i] + o[i]);
    }
    *reinterpret_cast<Packed*>(out + at) = result;
  }
}

// Two sums of a channel over the blocks that made them: 32 channels a block, threads below each other share the parts.
__device__ void sum_parts(const double* partial, int parts, int64_t channels, int64_t channel, double& first,
                          double& second) {
  __shared__ double shared[2][8][32];
  double a = 0, b = 0;
  for (int part = threadIdx.y; part < parts && channel < channels; part += blockDim.y) {
    a += partial[(part * 2) * channels + channel];
    b += partial[(part * 2 + 1) * channels + channel];
  }
  shared[0][threadIdx.y][threadIdx.x] = a;
  shared[1][threadIdx.y][threadIdx.x] = b;
  __syncthreads();
  first = second = 0;
  for (unsigned y = 0; y < blockDim.y; ++y) {
    first += shared[0][y][threadIdx.x];
    second += shared[1][y][threadIdx.x];
  }
}

template <class T>
__global__ void finish_moments_kernel(const double* partial, int parts, const T* x, double* moments, int64_t rows,
                                      int64_t channels) {
  const int64_t channel = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  double sum, squares;
  sum_parts(partial, parts, channels, channel, sum, squares);
  if (threadIdx.y > 0 || channel >= channels) return;
  const auto count = static_cast<double>(rows);
  moments[channel] = static_cast<double>(x[channel]) + sum / count;
  moments[channels + channel] = squares - sum * sum / count;
  if (channel == 0) moments[2 * channels] = count;
}

__global__ void finish_sums_kernel(const double* partial, int parts, double* sums, int64_t channels) {
  const int64_t channel = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  double sum, products;
  sum_parts(partial, parts, channels, channel, sum, products);
  if (threadIdx.y > 0 || channel >= channels) return;
  sums[channel] = sum;
  sums[channels + channel] = products;
}

template <class P>
__global__ void channel_scale_kernel(const double* moments, const P* gain, const P* bias, P* running_mean,
                                     P* running_variance, int64_t* batches, double* out, double epsilon,
                                     double momentum, int64_t channels) {
  const int64_t channel = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (channel == 0 && batches) ++*batches;
  if (channel >= channels) return;
  const double mean = moments[channel], squares = moments[channels + channel], count = moments[2 * channels];
  const double inverse = rsqrt(squares / count + epsilon);
  out[channel] = mean;
  out[channels + channel] = inverse;
  out[2 * channels + channel] = static_cast<double>(gain[channel]) * inverse;
  out[3 * channels + channel] = static_cast<double>(bias[channel]);
  const auto share = static_cast<P>(momentum);
  running_mean[channel] += share * (static_cast<P>(mean) - running_mean[channel]);
  running_variance[channel] += share * (static_cast<P>(squares / (count - 1)) - running_variance[channel]);
}

__global__ void gradient_terms_kernel(const double* own, const double* all, const double* count, const double* inverse,
                                      const double* scale, double* out, int64_t channels) {
  const int64_t channel = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (channel >= channels) return;
  const double share = -scale[channel] / *count, i = inverse[channel];
  out[channel] = share * i * i * all[channels + channel];
  out[channels + channel] = share * all[channel];
  out[2 * channels + channel] = own[channels + channel] * i;
}

unsigned blocks_for(int64_t channels, int64_t of) { return static_cast<unsigned>((channels + of - 1) / of); }

at::Tensor numbers_on(const at::Tensor& x, at::IntArrayRef shape) {
  return at::empty(shape, x.options().dtype(at::kDouble).memory_format(std::nullopt));
}

// Calls work.operator()<T, width>() for the type of `x` and the channels that a thread can take at once.
template <class Work>
void by_type(const at::Tensor& x, const Work& work) {
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "batch_norm", [&] {
    constexpr int width = 16 / sizeof(scalar_t);
    if (x.size(1) % width == 0)
      work.template operator()<scalar_t, width>();
    else
      work.template operator()<scalar_t, 1>();
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

const double* numbers(const at::Tensor& tensor) { return tensor.const_data_ptr<double>(); }

}  // namespace

at::Tensor channel_moments_cuda(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t C = x.size(1);
  auto moments = numbers_on(x, {2 * C + 1});
  if (x.numel() == 0) return moments.zero_();
  by_type(x, [&]<class T, int width>() {
    const Tiles tiles(x, width);
    const auto partial = numbers_on(x, {tiles.grid.y, 2, C});
    moments_kernel<T, width><<<tiles.grid, tiles.block, 0, stream>>>(x.const_data_ptr<T>(),
                                                                     partial.mutable_data_ptr<double>(), tiles.rows, C);
    finish_moments_kernel<T><<<blocks_for(C, 32), dim3(32, 8), 0, stream>>>(
        numbers(partial), static_cast<int>(tiles.grid.y), x.const_data_ptr<T>(), moments.mutable_data_ptr<double>(),
        tiles.rows, C);
  });
  return moments;
}

at::Tensor scale_channels_cuda(const at::Tensor& x, const ChannelScale& scale, bool relu, const at::Tensor& residual) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto y = at::empty_like(x);
  if (x.numel() == 0) return y;
  by_type(x, [&]<class T, int width>() {
    const Tiles tiles(x, width);
    const auto call = [&](auto kernel) {
      kernel<<<tiles.grid, tiles.block, 0, stream>>>(
          x.const_data_ptr<T>(), residual.defined() ? residual.const_data_ptr<T>() : nullptr, y.mutable_data_ptr<T>(),
          numbers(scale.mean_C), numbers(scale.scale_C), numbers(scale.shift_C), tiles.rows, tiles.channels);
    };
    if (residual.defined())
      relu ? call(scale_kernel<T, width, true, true>) : call(scale_kernel<T, width, false, true>);
    else
      relu ? call(scale_kernel<T, width, true, false>) : call(scale_kernel<T, width, false, false>);
  });
  return y;
}

at::Tensor gradient_sums_cuda(PassedGradient& gradient, const at::Tensor& x, const ChannelScale& scale) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t C = x.size(1);
  auto sums = numbers_on(x, {2, C});
  if (x.numel() == 0) return sums.zero_();
  const bool residual = gradient.y_BCHW.defined();
  const auto passed = residual ? at::empty_like(gradient.g_BCHW) : at::Tensor();
  by_type(x, [&]<class T, int width>() {
    const Tiles tiles(x, width);
    const auto partial = numbers_on(x, {tiles.grid.y, 2, C});
    const auto call = [&](auto kernel) {
      kernel<<<tiles.grid, tiles.block, 0, stream>>>(gradient.g_BCHW.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                                     residual ? gradient.y_BCHW.const_data_ptr<T>() : nullptr,
                                                     residual ? passed.mutable_data_ptr<T>() : nullptr,
                                                     partial.mutable_data_ptr<double>(), numbers(scale.mean_C),
                                                     numbers(scale.scale_C), numbers(scale.shift_C), tiles.rows, C);
    };
    if (residual)
      call(sums_kernel<T, width, true, true>);
    else
      gradient.relu ? call(sums_kernel<T, width, true, false>) : call(sums_kernel<T, width, false, false>);
    finish_sums_kernel<<<blocks_for(C, 32), dim3(32, 8), 0, stream>>>(numbers(partial), static_cast<int>(tiles.grid.y),
                                                                      sums.mutable_data_ptr<double>(), C);
  });
  if (residual) gradient.g_BCHW = passed;
  return sums;
}

at::Tensor input_gradient_cuda(const PassedGradient& gradient, const at::Tensor& x, const ChannelScale& scale,
                               const at::Tensor& slope_C, const at::Tensor& offset_C) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto out = at::empty_like(x);
  if (x.numel() == 0) return out;
  const bool masks = gradient.relu && !gradient.y_BCHW.defined();  // a residual's gradient has been masked before
  by_type(x, [&]<class T, int width>() {
    const Tiles tiles(x, width);
    const auto call = [&](auto kernel) {
      kernel<<<tiles.grid, tiles.block, 0, stream>>>(gradient.g_BCHW.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                                     out.mutable_data_ptr<T>(), numbers(scale.mean_C),
                                                     numbers(scale.scale_C), numbers(scale.shift_C), numbers(slope_C),
                                                     numbers(offset_C), tiles.rows, tiles.channels);
    };
    masks ? call(gradient_kernel<T, width, true>) : call(gradient_kernel<T, width, false>);
  });
  return out;
}

ChannelScale channel_scale_cuda(const at::Tensor& moments_K, const NormTensors& norm) {
  const c10::cuda::CUDAGuard guard(moments_K.device());
  const int64_t C = norm.gain_C.numel();
  const auto out = numbers_on(moments_K, {4, C});
  AT_DISPATCH_FLOATING_TYPES(norm.gain_C.scalar_type(), "channel_scale", [&] {
    channel_scale_kernel<scalar_t><<<blocks_for(C, 128), 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
        numbers(moments_K), norm.gain_C.const_data_ptr<scalar_t>(), norm.bias_C.const_data_ptr<scalar_t>(),
        norm.running_mean_C.mutable_data_ptr<scalar_t>(), norm.running_variance_C.mutable_data_ptr<scalar_t>(),
        norm.batches.defined() ? norm.batches.mutable_data_ptr<int64_t>() : nullptr, out.mutable_data_ptr<double>(),
        norm.epsilon, norm.momentum, C);
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out[0], out[1], out[2], out[3]};
}

GradientTerms gradient_terms_cuda(const at::Tensor& own_2C, const at::Tensor& all_2C, const at::Tensor& count,
                                  const ChannelScale& scale) {
  const c10::cuda::CUDAGuard guard(own_2C.device());
  const int64_t C = own_2C.size(1);
  const auto out = numbers_on(own_2C, {3, C});
  gradient_terms_kernel<<<blocks_for(C, 128), 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
      numbers(own_2C), numbers(all_2C), numbers(count), numbers(scale.inverse_C), numbers(scale.scale_C),
      out.mutable_data_ptr<double>(), C);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {out[0], out[1], out[2]};
}

}  // namespace trireme
