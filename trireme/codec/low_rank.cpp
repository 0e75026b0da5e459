#include "trireme/codec/low_rank.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

// What is left of a vector after those before it, as a share of its length, below which nothing but rounding is left.
constexpr float nothing_left = 1e-6f;

TRIREME_INLINE float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t lanes = 32;
  float sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int64_t k = 0; k < lanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  float sum = 0;
  for (int64_t k = 0; k < lanes; ++k) sum += sums[k];
  return sum;
}

// Gram and Schmidt's method, twice for each vector: once leaves rounding errors of the size of what was taken away.
struct Orthogonalise {
  float* vectors;
  int64_t rank, length;

  TRIREME_INLINE void operator()() const {
    for (int64_t r = 0; r < rank; ++r) {
      float* vector = vectors + r * length;
      const float before = std::sqrt(dot(vector, vector, length));
      for (int pass = 0; pass < 2; ++pass) {
        for (int64_t other = 0; other < r; ++other) {
          const float* unit = vectors + other * length;
          const float along = dot(vector, unit, length);
          for (int64_t i = 0; i < length; ++i) vector[i] -= along * unit[i];
        }
      }
      const float left = std::sqrt(dot(vector, vector, length));
      const float factor = left <= nothing_left * before ? 0 : 1 / left;  // NaN stays NaN
      for (int64_t i = 0; i < length; ++i) vector[i] = factor == 0 ? 0 : vector[i] * factor;
    }
  }
};

// The same for a card, where a vector's length is not known to the host.
void orthogonalise_anywhere(const at::Tensor& vectors) {
  for (int64_t r = 0; r < vectors.size(0); ++r) {
    const auto vector = vectors[r];
    const auto before = vector.norm();
    for (int pass = 0; pass < 2 && r > 0; ++pass) {
      const auto units = vectors.narrow(0, 0, r);
      vector.sub_(at::mv(units.t(), at::mv(units, vector)));
    }
    const auto left = vector.norm();
    vector.copy_(at::where(left.le(nothing_left * before), at::zeros_like(vector), vector / left));
  }
}

}  // namespace

LowRank::LowRank(std::vector<MatrixPlace> matrices, int64_t rank) {
  if (rank < 1) refuse("a rank of {}: it is at least 1", rank);
  std::sort(matrices.begin(), matrices.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (const auto& place : matrices) {
    const int64_t size = place.rows * place.columns;
    if (place.rows < 0 || place.columns < 0 || place.offset < end_)
      fail("matrices of a codec overlap, or have sides below 0");
    end_ = place.offset + size;
    const int64_t own = std::min({rank, place.rows, place.columns});
    if (own * (place.rows + place.columns) >= size) continue;
    factors_.push_back({place, own, p_count_, q_count_});
    p_count_ += own * place.rows;
    q_count_ += own * place.columns;
    inside_ += size;
  }
}

at::Tensor LowRank::matrix_of(const at::Tensor& values, const Factors& factors) {
  const auto& place = factors.place;
  return values.narrow(0, place.offset, place.rows * place.columns).view({place.rows, place.columns});
}

at::Tensor LowRank::p_of(const at::Tensor& p, const Factors& factors) {
  const int64_t rows = factors.place.rows;
  return p.narrow(0, factors.p_offset, factors.rank * rows).view({factors.rank, rows});
}

at::Tensor LowRank::q_of(const at::Tensor& q, const Factors& factors) {
  const int64_t columns = factors.place.columns;
  return q.narrow(0, factors.q_offset, factors.rank * columns).view({factors.rank, columns});
}

void LowRank::start(Key noise, const at::Tensor& q) const {
  auto drawn = q.is_cpu() ? q : at::empty({q_count_}, at::kFloat);
  auto* to = drawn.mutable_data_ptr<float>();
  for (const auto& factors : factors_) {
    const Key key = noise.with(static_cast<uint64_t>(factors.place.rows))
                        .with(static_cast<uint64_t>(factors.place.columns))
                        .with(static_cast<uint64_t>(factors.place.offset));
    const int64_t count = factors.rank * factors.place.columns;
    for (int64_t i = 0; i < count; ++i) {
      const auto draw = static_cast<int32_t>(bits32(key, static_cast<uint32_t>(i)) >> 8);
      to[factors.q_offset + i] = static_cast<float>(draw) * 0x1p-23f - 1;  // even in [−1, 1)
    }
  }
  if (!q.is_cpu()) q.copy_(drawn);
}

void LowRank::multiply(const at::Tensor& values, const at::Tensor& q, const at::Tensor& p) const {
  c10::NoGradGuard no_grad;
  for (const auto& factors : factors_) {
    auto out = p_of(p, factors);
    at::mm_out(out, q_of(q, factors), matrix_of(values, factors).t());
  }
}

void LowRank::orthogonalise(const at::Tensor& p) const {
  c10::NoGradGuard no_grad;
  for (const auto& factors : factors_) {
    if (p.is_cpu()) {
      run_widest(Orthogonalise{p.mutable_data_ptr<float>() + factors.p_offset, factors.rank, factors.place.rows});
    } else {
      orthogonalise_anywhere(p_of(p, factors));
    }
  }
}

void LowRank::multiply_back(const at::Tensor& values, const at::Tensor& p, const at::Tensor& q) const {
  c10::NoGradGuard no_grad;
  for (const auto& factors : factors_) {
    auto out = q_of(q, factors);
    at::mm_out(out, p_of(p, factors), matrix_of(values, factors));
  }
}

void LowRank::reconstruct(const at::Tensor& p, const at::Tensor& q, const at::Tensor& values) const {
  c10::NoGradGuard no_grad;
  for (const auto& factors : factors_) {
    auto out = matrix_of(values, factors);
    at::mm_out(out, p_of(p, factors).t(), q_of(q, factors));
  }
}

void LowRank::add_reconstructed(const at::Tensor& p, const at::Tensor& q, const at::Tensor& values,
                                double factor) const {
  c10::NoGradGuard no_grad;
  for (const auto& factors : factors_)
    matrix_of(values, factors).addmm_(p_of(p, factors).t(), q_of(q, factors), 1, factor);
}

std::vector<LowRank::Piece> LowRank::rest(int64_t count) const {
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (const auto& factors : factors_) {
    if (factors.place.offset > begin) pieces.push_back({begin, factors.place.offset});
    begin = factors.place.offset + factors.place.rows * factors.place.columns;
  }
  if (count > begin) pieces.push_back({begin, count});
  return pieces;
}

}  // namespace trireme
