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

// Where a draw for element `index` is taken: bits32 knows 2^32 places a key.
TRIREME_HOST_DEVICE constexpr Key noise_of(Key noise, int64_t first) {
  return first >> 32 ? noise.with(static_cast<uint64_t>(first >> 32)) : noise;
}

}  // namespace trireme
