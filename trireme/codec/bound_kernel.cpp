#include "trireme/codec/bound_kernel.h"

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

constexpr float whole = 12582912.f;  // 1.5 · 2^23: a float so large that adding it rounds to a whole number
constexpr float furthest = 4194304;  // 2^22: of whole numbers for which that holds

float rounded_down(double value) {
  const auto nearest = static_cast<float>(value);
  return nearest > value ? std::nextafter(nearest, 0.f) : nearest;
}

TRIREME_INLINE uint32_t zigzag(uint32_t number) { return number << 1 ^ (0u - (number >> 31)); }
TRIREME_INLINE uint32_t unzigzag(uint32_t code) { return code >> 1 ^ (0u - (code & 1)); }
TRIREME_INLINE float multiple(uint32_t code, float step) {
  return static_cast<float>(static_cast<int32_t>(unzigzag(code))) * step;
}

struct QuantiseAbsolute {
  const float* __restrict values;
  uint32_t* __restrict codes;
  int64_t count;
  float step, inverse, bound;

  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) {
      const float v = values[i], t = v * inverse, shifted = t + whole;
      const float error = v - (shifted - whole) * step;
      // The difference is rounded, and rounding keeps order: what is below the bound now was not above it before.
      const bool good = std::abs(error) < bound && std::abs(t) < furthest;
      codes[i] = good ? zigzag(bits_of(shifted) - bits_of(whole)) : outlier_code;
    }
  }
};

struct RestoreAbsolute {
  const uint32_t* __restrict codes;
  float* __restrict values;
  int64_t count;
  float step;

  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) values[i] = multiple(codes[i], step);
  }
};

TRIREME_INLINE uint32_t relative_code(float value, uint32_t dropped) {
  const uint32_t bits = bits_of(value), size = bits & 0x7fffffffu, fraction_bits = 23 - dropped;
  const uint32_t half = dropped > 0 ? (1u << dropped >> 1) - 1 + (size >> dropped & 1) : 0;
  const uint32_t kept = (size + half) >> dropped;
  const bool good = size == 0 || (size >= 0x00800000u && kept < infinity_bits >> dropped);
  const uint32_t fraction = kept & ((1u << fraction_bits) - 1);
  return good ? kept >> fraction_bits << 24 | bits >> 31 << fraction_bits | fraction : outlier_code;
}

struct QuantiseRelative {
  const float* __restrict values;
  uint32_t* __restrict codes;
  int64_t count;
  uint32_t dropped;

  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) codes[i] = relative_code(values[i], dropped);
  }
};

struct RestoreRelative {
  const uint32_t* __restrict codes;
  float* __restrict values;
  int64_t count;
  uint32_t dropped;

  TRIREME_INLINE void operator()() const {
    const uint32_t fraction_bits = 23 - dropped;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t fraction = codes[i] & ((1u << fraction_bits) - 1), sign = codes[i] >> fraction_bits << 31;
      values[i] = float_of(sign | codes[i] >> 24 << 23 | fraction << dropped);
    }
  }
};

struct Count {
  const uint32_t* __restrict codes;
  int64_t count;
  CodeCounts& counts;

  TRIREME_INLINE void operator()() const {
    int32_t outliers = 0, above_one = 0, above_two = 0;
    for (int64_t i = 0; i < count; ++i) {
      outliers += codes[i] == outlier_code;
      above_one += codes[i] >= 0xff;
      above_two += codes[i] >= 0xffff;
    }
    counts = {outliers, above_one, above_two};
  }
};

struct Split {
  const uint32_t* __restrict codes;
  uint8_t* __restrict bytes;
  int64_t count;
  int shift;

  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(codes[i] >> shift);
  }
};

template <int planes>
struct Join {
  const uint8_t* __restrict bytes;
  uint32_t* __restrict codes;
  int64_t count;

  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) {
      uint32_t code = bytes[i];
      for (int p = 1; p < planes; ++p) code |= static_cast<uint32_t>(bytes[p * bound_chunk + i]) << 8 * p;
      codes[i] = code;
    }
  }
};

}  // namespace

BoundFormat::BoundFormat(BoundKind kind, double bound) : relative_(kind == BoundKind::relative), bound_(bound) {
  if (!(bound > 0)) refuse("an error bound of {}: it is above 0", bound);
  if (relative_) {
    if (bound >= 1) refuse("a relative error bound of {}: it is below 1", bound);
    while (fraction_ < 23 && std::ldexp(1.0, -(fraction_ + 1)) > bound) ++fraction_;
    return;
  }
  if (bound < 0x1p-120 || bound > 0x1p120)
    refuse("an error bound of {} is beyond what fp32 can keep (2^-120 to 2^120)", bound);
  step_ = rounded_down(2 * bound);
  inverse_ = 1 / step_;
  float_bound_ = rounded_down(bound);
}

void BoundFormat::quantise(const float* values, int64_t count, uint32_t* codes) const {
  if (relative_) return run_widest(QuantiseRelative{values, codes, count, 23u - static_cast<uint32_t>(fraction_)});
  run_widest(QuantiseAbsolute{values, codes, count, step_, inverse_, float_bound_});
}

uint32_t BoundFormat::exact_code(float value) const {
  if (relative_) return relative_code(value, 23u - static_cast<uint32_t>(fraction_));
  const float t = value * inverse_;
  if (!(std::abs(t) < furthest)) return outlier_code;
  const uint32_t code = zigzag(bits_of(t + whole) - bits_of(whole));
  // Exact: the two are floats of about the same size, or one of them is 0.
  return std::abs(static_cast<double>(value) - static_cast<double>(multiple(code, step_))) <= bound_ ? code
                                                                                                     : outlier_code;
}

void BoundFormat::restore(const uint32_t* codes, int64_t count, float* values) const {
  if (relative_) return run_widest(RestoreRelative{codes, values, count, 23u - static_cast<uint32_t>(fraction_)});
  run_widest(RestoreAbsolute{codes, values, count, step_});
}

CodeCounts count_codes(const uint32_t* codes, int64_t count) {
  CodeCounts counts;
  run_widest(Count{codes, count, counts});
  return counts;
}

void split_planes(const uint32_t* codes, int64_t count, int planes, uint8_t* bytes) {
  for (int p = 0; p < planes; ++p) run_widest(Split{codes, bytes + p * bound_chunk, count, 8 * p});
}

void join_planes(const uint8_t* bytes, int64_t count, int planes, uint32_t* codes) {
  switch (planes) {
    case 1: return run_widest(Join<1>{bytes, codes, count});
    case 2: return run_widest(Join<2>{bytes, codes, count});
    case 3: return run_widest(Join<3>{bytes, codes, count});
    default: return run_widest(Join<4>{bytes, codes, count});
  }
}

}  // namespace trireme
