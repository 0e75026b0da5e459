#include "trireme/nn/rotary_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/on_threads.h"
#include "trireme/nn/wide.h"

namespace trireme {

namespace {

constexpr int64_t grain = 16384;  // elements that are worth a thread

template <class T, class Math>
struct Heads {
  const T* x;
  T* y;
  const Math *cosines, *sines;  // of the token's position
  int64_t heads, half;
  Math sign;  // −1 turns back
};

template <class T, class Math>
__attribute__((always_inline)) inline void turn(const Heads<T, Math>& token) {
  for (int64_t h = 0; h < token.heads; ++h) {
    const T* x = token.x + h * 2 * token.half;
    T* y = token.y + h * 2 * token.half;
    for (int64_t i = 0; i < token.half; ++i) {
      const Math a = static_cast<Math>(x[i]), b = static_cast<Math>(x[token.half + i]);
      const Math c = token.cosines[i], s = token.sign * token.sines[i];
      y[i] = static_cast<T>(a * c - b * s);
      y[token.half + i] = static_cast<T>(b * c + a * s);
    }
  }
}

template <class T, class Math>
void turn_plain(const Heads<T, Math>& token) {
  turn(token);
}
TRIREME_AVX2 void turn_256(const Heads<float, float>& token) { turn(token); }
TRIREME_AVX512 void turn_512(const Heads<float, float>& token) { turn(token); }
using Kernel = void (*)(const Heads<float, float>& token);
const Kernel best_turn = wide::widest<Kernel>(turn_plain<float, float>, turn_256, turn_512);

template <class T, class Math>
void rotate_cpu(const at::Tensor& x_BTHD, const at::Tensor& y_BTHD, const Rotations& rotations, int64_t first,
                const at::Tensor& positions_BT, bool back) {
  const int64_t tokens = x_BTHD.size(1), heads = x_BTHD.size(2), width = x_BTHD.size(3);
  const auto* places = positions_BT.defined() ? positions_BT.const_data_ptr<int64_t>() : nullptr;
  const auto* cosines = rotations.cosines.const_data_ptr<Math>();
  const auto* sines = rotations.sines.const_data_ptr<Math>();
  const T* from = x_BTHD.const_data_ptr<T>();
  T* to = y_BTHD.mutable_data_ptr<T>();
  void (*kernel)(const Heads<T, Math>&) = turn_plain<T, Math>;
  if constexpr (std::is_same_v<T, float>) kernel = best_turn;
  const auto rows = at::empty({x_BTHD.size(0) * tokens}, at::kByte);
  on_threads(rows, std::max<int64_t>(1, grain / (heads * width)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t angle = (places ? places[row] : first + row % tokens) * (width / 2);
      kernel({from + row * heads * width, to + row * heads * width, cosines + angle, sines + angle, heads, width / 2,
              static_cast<Math>(back ? -1 : 1)});
    }
  });
}

}  // namespace

Rotations make_rotations(int64_t positions, int64_t head_width, double theta, const at::TensorOptions& like) {
  const auto type = c10::typeMetaToScalarType(like.dtype()) == at::kDouble ? at::kDouble : at::kFloat;
  const auto exponents = at::arange(0, head_width, 2, at::kDouble) / static_cast<double>(head_width);
  const auto angles = at::outer(at::arange(positions, at::kDouble), at::pow(theta, -exponents));
  const auto placed = [&](const at::Tensor& table) { return table.to(like.device(), type).contiguous(); };
  return {placed(angles.cos()), placed(angles.sin())};
}

at::Tensor rotate(const at::Tensor& x_any, const Rotations& rotations, int64_t first, const at::Tensor& positions_any,
                  bool back) {
  const auto x_BTHD = x_any.contiguous();
  const auto positions_BT = positions_any.defined() ? positions_any.contiguous() : positions_any;
  if (x_BTHD.size(3) != 2 * rotations.cosines.size(1))
    fail("heads of {} values are turned by angles for {}", x_BTHD.size(3), 2 * rotations.cosines.size(1));
  if (!positions_BT.defined() && first + x_BTHD.size(1) > rotations.cosines.size(0))
    fail("position {} has no angles: there are {}", first + x_BTHD.size(1) - 1, rotations.cosines.size(0));
  auto y_BTHD = at::empty_like(x_BTHD);
  if (x_BTHD.is_cuda()) {
    rotate_cuda(x_BTHD, y_BTHD, rotations, first, positions_BT, back);
    return y_BTHD;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x_BTHD.scalar_type(), "rotate", [&] {
    using Math = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    rotate_cpu<scalar_t, Math>(x_BTHD, y_BTHD, rotations, first, positions_BT, back);
  });
  return y_BTHD;
}

}  // namespace trireme
