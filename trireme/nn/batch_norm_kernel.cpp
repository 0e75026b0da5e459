#include "trireme/nn/batch_norm_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/nn/on_threads.h"

namespace trireme {

namespace {

constexpr int64_t block_elements = 32768;  // of a block: it stays in a core's own cache while it is read twice

// What sums are made in: fp64 of fp64, otherwise fp32 inside a block, and fp64 over the blocks.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The rows of a tensor, block by block.
struct Rows {
  int64_t channels, rows, block, blocks;

  explicit Rows(const at::Tensor& x) : channels(x.size(1)), rows(channels > 0 ? x.numel() / channels : 0) {
    if (!x.is_contiguous(at::MemoryFormat::ChannelsLast)) fail("a BatchNorm was given channels that do not lie last");
    block = std::max<int64_t>(1, block_elements / std::max<int64_t>(1, channels));
    blocks = (rows + block - 1) / block;
  }

  // Calls work(block, first row, rows) for each of them.
  void each(c10::function_ref<void(int64_t, int64_t, int64_t)> work) const {
    on_threads(at::empty({blocks}, at::kByte), 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) work(b, b * block, std::min(block, rows - b * block));
    });
  }
};

// The loops: over rows, and inside over channels, which are vectorised: no two of the arrays overlap.

struct Moments {
  template <class T>
  __attribute__((always_inline)) static void loop(const T* x, int64_t rows, int64_t C, Sum<T>* mean, Sum<T>* squares) {
    using S = Sum<T>;
    const T* row = x;
    for (int64_t r = 0; r < rows; ++r, row += C) {
#pragma GCC ivdep
      for (int64_t c = 0; c < C; ++c) mean[c] += static_cast<S>(row[c]);
    }
#pragma GCC ivdep
    for (int64_t c = 0; c < C; ++c) mean[c] /= static_cast<S>(rows);
    row = x;
    for (int64_t r = 0; r < rows; ++r, row += C) {
#pragma GCC ivdep
      for (int64_t c = 0; c < C; ++c) {
        const S deviation = static_cast<S>(row[c]) - mean[c];
        squares[c] += deviation * deviation;
      }
    }
  }
};

template <bool relu, bool residual>
struct Scale {
  template <class T>
  __attribute__((always_inline)) static void loop(const T* x, const T* added, T* y, int64_t rows, int64_t C,
                                                  const Sum<T>* mean, const Sum<T>* scale, const Sum<T>* shift) {
    using S = Sum<T>;
    for (int64_t r = 0; r < rows; ++r, x += C, y += C, added += residual ? C : 0) {
#pragma GCC ivdep
      for (int64_t c = 0; c < C; ++c) {
        S value = (static_cast<S>(x[c]) - mean[c]) * scale[c] + shift[c];
        if constexpr (residual) value += static_cast<S>(added[c]);
        if constexpr (relu) value = value > S{0} ? value : S{0};
        y[c] = static_cast<T>(value);
      }
    }
  }
};

template <bool relu, bool residual>
struct GradientSums {
  template <class T>
  __attribute__((always_inline)) static void loop(const T* g, const T* x, const T* y, T* passed, int64_t rows,
                                                  int64_t C, const Sum<T>* mean, const Sum<T>* scale,
                                                  const Sum<T>* shift, Sum<T>* sums, Sum<T>* products) {
    using S = Sum<T>;
    for (int64_t r = 0; r < rows; ++r, g += C, x += C, y += residual ? C : 0, passed += residual ? C : 0) {
#pragma GCC ivdep
      for (int64_t c = 0; c < C; ++c) {
        const S deviation = static_cast<S>(x[c]) - mean[c];
        S value = static_cast<S>(g[c]);
        if constexpr (relu && residual) value = static_cast<S>(y[c]) > S{0} ? value : S{0};
        if constexpr (relu && !residual) value = deviation * scale[c] + shift[c] > S{0} ? value : S{0};
        if constexpr (relu && residual) passed[c] = static_cast<T>(value);
        sums[c] += value;
        products[c] += value * deviation;
      }
    }
  }
};

template <bool relu>
struct InputGradient {
  template <class T>
  __attribute__((always_inline)) static void loop(const T* g, const T* x, T* out, int64_t rows, int64_t C,
                                                  const Sum<T>* mean, const Sum<T>* scale, const Sum<T>* shift,
                                                  const Sum<T>* slope, const Sum<T>* offset) {
    using S = Sum<T>;
    for (int64_t r = 0; r < rows; ++r, g += C, x += C, out += C) {
#pragma GCC ivdep
      for (int64_t c = 0; c < C; ++c) {
        const S deviation = static_cast<S>(x[c]) - mean[c];
        S value = static_cast<S>(g[c]);
        if constexpr (relu) value = deviation * scale[c] + shift[c] > S{0} ? value : S{0};
        out[c] = static_cast<T>(value * scale[c] + deviation * slope[c] + offset[c]);
      }
    }
  }
};

// A loop compiled for wider registers, where the processor has them.
template <class Function, class... Arguments>
void plain(Arguments... arguments) {
  Function::loop(arguments...);
}

#if defined(__x86_64__)
template <class Function, class... Arguments>
__attribute__((target("avx2,fma"))) void wide(Arguments... arguments) {
  Function::loop(arguments...);
}

template <class Function, class... Arguments>
__attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512"))) void widest(Arguments... arguments) {
  Function::loop(arguments...);
}

int register_width() {
  static const int bits = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
      return 512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 256 : 128;
  }();
  return bits;
}
#endif

template <class Function, class... Arguments>
void run(Arguments... arguments) {
#if defined(__x86_64__)
  if (register_width() == 512) return widest<Function>(arguments...);
  if (register_width() == 256) return wide<Function>(arguments...);
#endif
  plain<Function>(arguments...);
}

template <class T>
std::vector<Sum<T>> numbers_of(const at::Tensor& tensor_C) {
  const auto* from = tensor_C.const_data_ptr<double>();
  return std::vector<Sum<T>>(from, from + tensor_C.numel());
}

template <class T>
struct ScaleNumbers {
  std::vector<Sum<T>> mean, scale, shift;

  explicit ScaleNumbers(const ChannelScale& of)
      : mean(numbers_of<T>(of.mean_C)), scale(numbers_of<T>(of.scale_C)), shift(numbers_of<T>(of.shift_C)) {}
};

template <class T>
void moments(const at::Tensor& x, const Rows& rows, double* mean, double* squares) {
  const auto C = rows.channels;
  std::vector<Sum<T>> parts(static_cast<size_t>(2 * C * rows.blocks));
  const auto* from = x.const_data_ptr<T>();
  rows.each([&](int64_t b, int64_t first, int64_t count) {
    auto* part = parts.data() + 2 * C * b;
    run<Moments>(from + first * C, count, C, part, part + C);
  });
  // Chan's formula, block after block.
  double seen = 0;
  for (int64_t b = 0; b < rows.blocks; ++b) {
    const auto count = static_cast<double>(std::min(rows.block, rows.rows - b * rows.block));
    const auto* part = parts.data() + 2 * C * b;
    for (int64_t c = 0; c < C; ++c) {
      const double step = static_cast<double>(part[c]) - mean[c];
      mean[c] += step * (count / (seen + count));
      squares[c] += static_cast<double>(part[C + c]) + step * step * (seen * count / (seen + count));
    }
    seen += count;
  }
}

template <class T>
void sums(PassedGradient& gradient, const at::Tensor& x, const ChannelScale& scale, const Rows& rows, double* out) {
  const auto C = rows.channels;
  const ScaleNumbers<T> by(scale);
  std::vector<Sum<T>> parts(static_cast<size_t>(2 * C * rows.blocks));
  const auto* g = gradient.g_BCHW.const_data_ptr<T>();
  const bool residual = gradient.y_BCHW.defined();
  const auto passed = residual ? at::empty_like(gradient.g_BCHW) : at::Tensor();
  rows.each([&](int64_t b, int64_t first, int64_t count) {
    const int64_t at = first * C;
    const auto* from = x.const_data_ptr<T>() + at;
    const T* y = residual ? gradient.y_BCHW.const_data_ptr<T>() + at : nullptr;
    T* to = residual ? passed.mutable_data_ptr<T>() + at : nullptr;
    auto* part = parts.data() + 2 * C * b;
    const auto call = [&]<class Function>(Function) {
      run<Function>(g + at, from, y, to, count, C, by.mean.data(), by.scale.data(), by.shift.data(), part, part + C);
    };
    if (residual) return call(GradientSums<true, true>());
    if (gradient.relu) return call(GradientSums<true, false>());
    call(GradientSums<false, false>());
  });
  for (int64_t b = 0; b < rows.blocks; ++b) {
    for (int64_t i = 0; i < 2 * C; ++i) out[i] += static_cast<double>(parts[static_cast<size_t>(2 * C * b + i)]);
  }
  if (residual) gradient.g_BCHW = passed;
}

}  // namespace

at::Tensor channel_moments(const at::Tensor& x) {
  const Rows rows(x);
  if (x.is_cuda()) return channel_moments_cuda(x);
  auto result = at::zeros({2 * rows.channels + 1}, at::kDouble);
  auto* out = result.mutable_data_ptr<double>();
  out[2 * rows.channels] = static_cast<double>(rows.rows);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "channel_moments",
                                 [&] { moments<scalar_t>(x, rows, out, out + rows.channels); });
  return result;
}

at::Tensor scale_channels(const at::Tensor& x, const ChannelScale& scale, bool relu, const at::Tensor& residual) {
  const Rows rows(x);
  if (residual.defined() && !residual.is_contiguous(at::MemoryFormat::ChannelsLast))
    fail("a residual was given whose channels do not lie last");
  if (x.is_cuda()) return scale_channels_cuda(x, scale, relu, residual);
  const auto y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "scale_channels", [&] {
    using T = scalar_t;
    const ScaleNumbers<T> by(scale);
    rows.each([&](int64_t, int64_t first, int64_t count) {
      const int64_t at = first * rows.channels;
      const T* added = residual.defined() ? residual.const_data_ptr<T>() + at : nullptr;
      const auto call = [&]<class Function>(Function) {
        run<Function>(x.const_data_ptr<T>() + at, added, y.mutable_data_ptr<T>() + at, count, rows.channels,
                      by.mean.data(), by.scale.data(), by.shift.data());
      };
      if (added) return relu ? call(Scale<true, true>()) : call(Scale<false, true>());
      return relu ? call(Scale<true, false>()) : call(Scale<false, false>());
    });
  });
  return y;
}

at::Tensor gradient_sums(PassedGradient& gradient, const at::Tensor& x, const ChannelScale& scale) {
  const Rows rows(x);
  if (x.is_cuda()) return gradient_sums_cuda(gradient, x, scale);
  auto result = at::zeros({2, rows.channels}, at::kDouble);
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "gradient_sums",
                                 [&] { sums<scalar_t>(gradient, x, scale, rows, result.mutable_data_ptr<double>()); });
  return result;
}

at::Tensor input_gradient(const PassedGradient& gradient, const at::Tensor& x, const ChannelScale& scale,
                          const at::Tensor& slope_C, const at::Tensor& offset_C) {
  const Rows rows(x);
  if (x.is_cuda()) return input_gradient_cuda(gradient, x, scale, slope_C, offset_C);
  const auto out = at::empty_like(x);
  const bool masks = gradient.relu && !gradient.y_BCHW.defined();  // a residual's gradient has been masked before
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "input_gradient", [&] {
    using T = scalar_t;
    const ScaleNumbers<T> by(scale);
    const auto slope = numbers_of<T>(slope_C), offset = numbers_of<T>(offset_C);
    rows.each([&](int64_t, int64_t first, int64_t count) {
      const int64_t at = first * rows.channels;
      const auto call = [&]<class Function>(Function) {
        run<Function>(gradient.g_BCHW.const_data_ptr<T>() + at, x.const_data_ptr<T>() + at,
                      out.mutable_data_ptr<T>() + at, count, rows.channels, by.mean.data(), by.scale.data(),
                      by.shift.data(), slope.data(), offset.data());
      };
      return masks ? call(InputGradient<true>()) : call(InputGradient<false>());
    });
  });
  return out;
}

}  // namespace trireme
