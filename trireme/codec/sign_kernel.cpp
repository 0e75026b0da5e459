#include <algorithm>
#include <limits>

#include "trireme/codec/fixed_format.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

constexpr int64_t lanes = 16;  // partial sums of a mean, the same on every machine

// The residual takes the values in; gives the mean magnitude. Divided before they are added, values near the largest
// float do not overflow.
template <bool feedback>
TRIREME_INLINE float take_in(const float* __restrict values, float* __restrict residual, int64_t count) {
  const float share = 1 / static_cast<float>(count);
  float sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int64_t k = 0; k < lanes; ++k) {
      const float v = feedback ? values[i + k] + residual[i + k] : values[i + k];
      if constexpr (feedback) residual[i + k] = v;
      sums[k] += float_of(bits_of(v) & 0x7fffffffu) * share;
    }
  }
  for (; i < count; ++i) {
    const float v = feedback ? values[i] + residual[i] : values[i];
    if constexpr (feedback) residual[i] = v;
    sums[i % lanes] += float_of(bits_of(v) & 0x7fffffffu) * share;
  }
  float mean = 0;
  for (int64_t k = 0; k < lanes; ++k) mean += sums[k];
  return mean;
}

// A block that is full has a multiple of 8 elements: no element is missing anywhere.
TRIREME_INLINE void pack(const float* __restrict v, int64_t count, uint8_t* __restrict codes) {
  const int64_t eighth = (count + 7) / 8;
  if (count % 8 == 0) {
    for (int64_t j = 0; j < eighth; ++j) {
      uint32_t byte = 0;
      for (int64_t k = 0; k < 8; ++k) byte |= bits_of(v[j + k * eighth]) >> 31 << k;
      codes[j] = static_cast<uint8_t>(byte);
    }
    return;
  }
  std::memset(codes, 0, static_cast<size_t>(eighth));
  for (int64_t i = 0; i < count; ++i)
    codes[i % eighth] = static_cast<uint8_t>(codes[i % eighth] | bits_of(v[i]) >> 31 << (i / eighth));
}

template <bool feedback>
struct Encode {
  const FixedFormat& format;
  const FixedEncoding& work;

  TRIREME_INLINE void operator()() const {
    const int64_t code_bytes = format.code_bytes(format.block);
    uint8_t* codes = work.codes;
    uint8_t* scales = work.scales;
    for (int64_t first = 0; first < work.count; first += format.block) {
      const int64_t count = std::min(format.block, work.count - first);
      const float* v = work.values + first;
      float* residual = feedback ? work.residual + first : nullptr;
      float scale = take_in<feedback>(v, residual, count);
      if constexpr (feedback) v = residual;
      const bool finite = magnitude(scale) < static_cast<int32_t>(infinity_bits);
      if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
      pack(v, count, codes);
      if constexpr (feedback) {
        for (int64_t i = 0; i < count; ++i)
          residual[i] = finite ? v[i] - float_of(bits_of(scale) | (bits_of(v[i]) & 0x80000000u)) : 0.f;
      }
      std::memcpy(scales, &scale, sizeof(float));
      codes += code_bytes;
      scales += sizeof(float);
    }
  }
};

template <bool adding>
TRIREME_INLINE void unpack(const uint8_t* __restrict codes, int64_t bit, uint32_t scale, int64_t count,
                           float* __restrict values) {
  for (int64_t j = 0; j < count; ++j) {
    const float value = float_of(scale ^ (static_cast<uint32_t>(codes[j]) >> bit << 31));
    values[j] = adding ? values[j] + value : value;
  }
}

template <bool adding>
struct Decode {
  const FixedFormat& format;
  const FixedDecoding& work;

  TRIREME_INLINE void operator()() const {
    const int64_t code_bytes = format.code_bytes(format.block);
    const uint8_t* codes = work.codes;
    const uint8_t* scales = work.scales;
    for (int64_t first = 0; first < work.count; first += format.block) {
      const int64_t count = std::min(format.block, work.count - first), eighth = (count + 7) / 8;
      uint32_t scale;
      std::memcpy(&scale, scales, sizeof(float));
      for (int64_t k = 0; k * eighth < count; ++k)
        unpack<adding>(codes, k, scale, std::min(eighth, count - k * eighth), work.values + first + k * eighth);
      codes += code_bytes;
      scales += sizeof(float);
    }
  }
};

}  // namespace

void encode_signs(const FixedFormat& format, const FixedEncoding& work) {
  if (work.residual) return run_widest(Encode<true>{format, work});
  run_widest(Encode<false>{format, work});
}

void decode_signs(const FixedFormat& format, const FixedDecoding& work) {
  if (work.adding) return run_widest(Decode<true>{format, work});
  run_widest(Decode<false>{format, work});
}

}  // namespace trireme
