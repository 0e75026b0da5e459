#include <algorithm>
#include <limits>

#include "trireme/codec/fixed_format.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

constexpr float whole = 12582912.f;  // 1.5 · 2^23: a float so large that adding it rounds to a whole number

struct Block {
  const float* __restrict values;
  float* __restrict residual;  // or null; it holds what is said, the values added to what was left
  int32_t count;
  float scale, inverse;
  uint32_t noise;
};

// The residual takes the values in; gives the largest magnitude. Sums that are too large are infinite, as any others.
template <bool feedback>
TRIREME_INLINE int32_t take_in(const float* __restrict values, float* __restrict residual, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float v = feedback ? values[i] + residual[i] : values[i];
    if constexpr (feedback) residual[i] = v;
    largest = std::max(largest, magnitude(v));
  }
  return largest;
}

// The code of element i, from −levels to levels, and what is lost by it into the residual. `draw` has 16 random bits.
template <int levels, bool feedback, bool stochastic>
TRIREME_INLINE int32_t code_of(const Block& block, int32_t i, uint32_t draw) {
  const float v = feedback ? block.residual[i] : block.values[i];
  float t = v * block.inverse;
  // In (−½, ½), never at its ends: a value that is a whole number of scales stays one.
  if constexpr (stochastic) t += (static_cast<float>(static_cast<int32_t>(draw)) + 0.5f) * 0x1p-16f - 0.5f;
  auto code = static_cast<int32_t>(bits_of(t + whole) - bits_of(whole));
  // The last level's sum may pass half of what lies beyond it by a rounding.
  if constexpr (stochastic) code = std::min(std::max(code, -levels), levels);
  if constexpr (feedback) block.residual[i] = v - static_cast<float>(code) * block.scale;
  return code;
}

// Elements of the first and the second half of a block share a word of random bits.
template <FixedKind kind, bool feedback, bool stochastic>
TRIREME_INLINE void encode_block(const Block& block, uint8_t* __restrict codes) {
  constexpr int levels = kind == FixedKind::int8 ? 127 : 7;
  const int32_t low = (block.count + 1) / 2, high = block.count / 2;
  for (int32_t j = 0; j < high; ++j) {
    const uint32_t draws = stochastic ? rounding_bits(block.noise, static_cast<uint32_t>(j)) : 0;
    const int32_t one = code_of<levels, feedback, stochastic>(block, j, draws >> 16);
    const int32_t other = code_of<levels, feedback, stochastic>(block, j + low, draws & 0xffff);
    if constexpr (kind == FixedKind::int8) {
      codes[j] = static_cast<uint8_t>(one);
      codes[j + low] = static_cast<uint8_t>(other);
    } else {
      codes[j] = static_cast<uint8_t>((one & 15) | other << 4);
    }
  }
  if (low == high) return;
  const uint32_t draws = stochastic ? rounding_bits(block.noise, static_cast<uint32_t>(high)) : 0;
  const int32_t last = code_of<levels, feedback, stochastic>(block, high, draws >> 16);
  codes[high] = static_cast<uint8_t>(kind == FixedKind::int8 ? last : last & 15);
}

template <FixedKind kind, bool feedback, bool stochastic>
struct Encode {
  const FixedFormat& format;
  const FixedEncoding& work;

  TRIREME_INLINE void operator()() const {
    constexpr float levels = kind == FixedKind::int8 ? 127 : 7;
    const int64_t code_bytes = format.code_bytes(format.block);
    uint8_t* codes = work.codes;
    uint8_t* scales = work.scales;
    for (int64_t first = 0; first < work.count; first += format.block) {
      Block block{work.values + first, feedback ? work.residual + first : nullptr,
                  static_cast<int32_t>(std::min(format.block, work.count - first))};
      const int32_t largest = take_in<feedback>(block.values, block.residual, block.count);
      if constexpr (stochastic) block.noise = block_noise(work.noise, work.first + first);
      const bool finite = largest < static_cast<int32_t>(infinity_bits);
      const auto scale = BlockScale::of(float_of(static_cast<uint32_t>(largest)), levels);
      block.scale = finite ? scale.scale : std::numeric_limits<float>::quiet_NaN();
      block.inverse = scale.inverse;
      if (finite) {
        encode_block<kind, feedback, stochastic>(block, codes);
      } else {
        std::memset(codes, 0, static_cast<size_t>(format.code_bytes(block.count)));
        if constexpr (feedback) std::fill_n(block.residual, block.count, 0.f);
      }
      std::memcpy(scales, &block.scale, sizeof(float));
      codes += code_bytes;
      scales += sizeof(float);
    }
  }
};

template <bool adding>
TRIREME_INLINE void put(float* to, float value) {
  *to = adding ? *to + value : value;
}

template <FixedKind kind, bool adding>
TRIREME_INLINE void decode_block(const uint8_t* __restrict codes, float scale, int64_t count,
                                 float* __restrict values) {
  if constexpr (kind == FixedKind::int8) {
    for (int64_t i = 0; i < count; ++i)
      put<adding>(values + i, static_cast<float>(static_cast<int8_t>(codes[i])) * scale);
  } else {
    const int64_t low = (count + 1) / 2, high = count / 2;
    for (int64_t j = 0; j < low; ++j) {
      const int32_t code = static_cast<int32_t>(static_cast<uint32_t>(codes[j]) << 28) >> 28;
      put<adding>(values + j, static_cast<float>(code) * scale);
    }
    for (int64_t j = 0; j < high; ++j) {
      const int32_t code = static_cast<int8_t>(codes[j]) >> 4;
      put<adding>(values + low + j, static_cast<float>(code) * scale);
    }
  }
}

template <FixedKind kind, bool adding>
struct Decode {
  const FixedFormat& format;
  const FixedDecoding& work;

  TRIREME_INLINE void operator()() const {
    const int64_t code_bytes = format.code_bytes(format.block);
    const uint8_t* codes = work.codes;
    const uint8_t* scales = work.scales;
    for (int64_t first = 0; first < work.count; first += format.block) {
      float scale;
      std::memcpy(&scale, scales, sizeof(float));
      decode_block<kind, adding>(codes, scale, std::min(format.block, work.count - first), work.values + first);
      codes += code_bytes;
      scales += sizeof(float);
    }
  }
};

template <FixedKind kind>
void encode_kind(const FixedFormat& format, const FixedEncoding& work) {
  if (work.residual) {
    if (format.stochastic) return run_widest(Encode<kind, true, true>{format, work});
    return run_widest(Encode<kind, true, false>{format, work});
  }
  if (format.stochastic) return run_widest(Encode<kind, false, true>{format, work});
  run_widest(Encode<kind, false, false>{format, work});
}

template <FixedKind kind>
void decode_kind(const FixedFormat& format, const FixedDecoding& work) {
  if (work.adding) return run_widest(Decode<kind, true>{format, work});
  run_widest(Decode<kind, false>{format, work});
}

}  // namespace

void encode_integers(const FixedFormat& format, const FixedEncoding& work) {
  if (format.kind == FixedKind::int8) return encode_kind<FixedKind::int8>(format, work);
  encode_kind<FixedKind::int4>(format, work);
}

void decode_integers(const FixedFormat& format, const FixedDecoding& work) {
  if (format.kind == FixedKind::int8) return decode_kind<FixedKind::int8>(format, work);
  decode_kind<FixedKind::int4>(format, work);
}

}  // namespace trireme
