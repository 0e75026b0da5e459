#include "trireme/nn/dropout_kernel.h"

#include <ATen/Dispatch.h>
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/nn/on_threads.h"

namespace trireme {

namespace {

constexpr int64_t grain = 16384;  // elements that are worth a thread

template <class T>
void drop_cpu(const at::Tensor& x, const at::Tensor& y, const uint64_t* keys, int64_t elements, uint32_t threshold,
              double scale) {
  const T* from = x.const_data_ptr<T>();
  T* to = y.mutable_data_ptr<T>();
  const T keep = static_cast<T>(scale), none = static_cast<T>(0);
  on_threads(y, grain, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin / elements; sample * elements < end; ++sample) {
      const Key key{keys[sample]};
      const int64_t start = sample * elements;
      const int64_t first = std::max(begin, start), last = std::min(end, start + elements);
      for (int64_t i = first; i < last; ++i)
        to[i] = from[i] * (bits32(key, static_cast<uint32_t>(i - start)) >= threshold ? keep : none);
    }
  });
}

}  // namespace

at::Tensor drop(const at::Tensor& x_any, double probability, Key key, const at::Tensor& samples) {
  const auto x = x_any.contiguous();
  const int64_t count = x.size(0), elements = count > 0 ? x.numel() / count : 0;
  if (samples.numel() != count) fail("dropout of {} samples was given {} identities", count, samples.numel());
  if (elements >= int64_t{1} << 32) fail("dropout handles fewer than 2^32 elements a sample, not {}", elements);
  auto y = at::empty_like(x);
  auto keys = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    keys.data_ptr<int64_t>()[i] =
        static_cast<int64_t>(key.with(static_cast<uint64_t>(samples.data_ptr<int64_t>()[i])).value);
  }
  const auto threshold = static_cast<uint32_t>(probability * 0x1p32);
  const double scale = 1 / (1 - probability);
  if (x.is_cuda()) {
    drop_cuda(x, y, keys.to(x.device(), /*non_blocking=*/true), threshold, scale);
    return y;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "drop", [&] {
    drop_cpu<scalar_t>(x, y, reinterpret_cast<const uint64_t*>(keys.data_ptr<int64_t>()), elements, threshold, scale);
  });
  return y;
}

}  // namespace trireme
