// Codecs whose messages are as long for any values: casts, integers with a scale a block, and signs. Their kernels are
// one pass over the values, on a core or on a card.
//
//   fp16, bf16   the nearest value of the type; NaN and infinities stay what they are
//   int8, int4   round(v / scale), scale = largest |v| of the block / 127 or / 7
//   sign         the sign, times the mean |v| of the block
//
// A payload is the codes, filled up to whole words of four bytes, and then a scale (fp32) for each block. Blocks that
// hold NaN or an infinity have the scale NaN, and so are NaN everywhere. Codes of int4 and sign lie so that loops over
// them read and write neighbours: byte j of a block of n holds the elements j and j + ⌈n/2⌉, or j + k·⌈n/8⌉ for k < 8.
#pragma once

#include <cstdint>

#include "trireme/base/random.h"

namespace trireme {

enum class FixedKind { fp16, bf16, int8, int4, sign };

struct FixedFormat {
  FixedKind kind = FixedKind::int8;
  int64_t block = 256;      // a multiple of 8
  bool stochastic = false;  // int8 and int4: up or down at random, so that the expected value is v

  bool scaled() const { return kind != FixedKind::fp16 && kind != FixedKind::bf16; }
  int64_t blocks(int64_t count) const { return scaled() ? (count + block - 1) / block : 0; }
  // Of the first `count` elements' codes, without filling.
  int64_t code_bytes(int64_t count) const {
    switch (kind) {
      case FixedKind::int8: return count;
      case FixedKind::int4: return count / block * (block / 2) + (count % block + 1) / 2;
      case FixedKind::sign: return count / block * (block / 8) + (count % block + 7) / 8;
      default: return 2 * count;
    }
  }
  int64_t scale_offset(int64_t count) const { return (code_bytes(count) + 3) / 4 * 4; }
  int64_t bytes(int64_t count) const { return scaled() ? scale_offset(count) + 4 * blocks(count) : code_bytes(count); }
};

// What is said of the elements [first, first + count) of a tensor; `first` begins a block. The residual, where there is
// one, is taken in and left behind as codec.h says.
struct FixedEncoding {
  const float* values;
  float* residual;  // or null
  int64_t first, count;
  Key noise;
  uint8_t* codes;   // of the element `first`
  uint8_t* scales;  // of its block
};

struct FixedDecoding {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t count;
  float* values;
  bool adding;
};

// On the core that calls.
void encode_fixed(const FixedFormat& format, const FixedEncoding& work);
void decode_fixed(const FixedFormat& format, const FixedDecoding& work);

// The kinds of kernel behind them.
void encode_casts(const FixedFormat& format, const FixedEncoding& work);
void decode_casts(const FixedFormat& format, const FixedDecoding& work);
void encode_integers(const FixedFormat& format, const FixedEncoding& work);
void decode_integers(const FixedFormat& format, const FixedDecoding& work);
void encode_signs(const FixedFormat& format, const FixedEncoding& work);
void decode_signs(const FixedFormat& format, const FixedDecoding& work);

// On a card, given to the stream; all pointers are its memory, values and codes aligned to 16 bytes or handled one by
// one. Refuses in a build without CUDA.
void encode_fixed_cuda(const FixedFormat& format, const FixedEncoding& work, int card);
void decode_fixed_cuda(const FixedFormat& format, const FixedDecoding& work, int card);

// The scale of a block whose largest magnitude is finite.
struct BlockScale {
  float scale, inverse;

  static TRIREME_HOST_DEVICE constexpr BlockScale of(float largest, float levels) {
    const float most = 3.402823e38f / levels;  // more, and the last level would be infinite by a rounding
    float scale = largest * (1 / levels);
    scale = scale < most ? scale : most;
    // A scale without an inverse is that of values beyond all use, and they are 0.
    return scale < 1.17549435e-38f ? BlockScale{0, 0} : BlockScale{scale, 1 / scale};
  }
};

// What random rounding is a function of: a number for each block, from its first element's place, and 32 bits for each
// place in its first half, of which the lower 16 are the second half's. One round of what bits32 takes two of, as the
// number of a block is as random as can be.
TRIREME_HOST_DEVICE constexpr uint32_t block_noise(Key noise, int64_t first) {
  return static_cast<uint32_t>(mix64(noise.value ^ mix64(static_cast<uint64_t>(first))));
}
TRIREME_HOST_DEVICE constexpr uint32_t rounding_bits(uint32_t block_noise, uint32_t place) {
  uint32_t x = block_noise + place;
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

}  // namespace trireme
