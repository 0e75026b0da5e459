#include <c10/util/Half.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trireme/codec/fixed_format.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

// Compilers make no vectors of conversions to fp16, so these are written out, and the loops around them work on pieces
// that stay in the nearest cache.
using ToHalf = void (*)(const float* from, Unaligned16* to, int64_t count);
using FromHalf = void (*)(const Unaligned16* from, float* to, int64_t count);

void to_half_plain(const float* from, Unaligned16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = c10::detail::fp16_ieee_from_fp32_value(from[i]);
}

void from_half_plain(const Unaligned16* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = c10::detail::fp16_ieee_to_fp32_value(from[i]);
}

#if defined(__x86_64__)
// g++ 12 takes the variants without a mask for readers of what nobody wrote (GCC bug 105593).
constexpr __mmask16 every_lane = 0xffff;
constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

TRIREME_TARGET_AVX2 void to_half_avx2(const float* from, Unaligned16* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), nearest));
  to_half_plain(from + i, to + i, count - i);
}

TRIREME_TARGET_AVX2 void from_half_avx2(const Unaligned16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  from_half_plain(from + i, to + i, count - i);
}

TRIREME_TARGET_AVX512 void to_half_avx512(const float* from, Unaligned16* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm512_maskz_cvtps_ph(every_lane, _mm512_loadu_ps(from + i), nearest));
  to_half_plain(from + i, to + i, count - i);
}

TRIREME_TARGET_AVX512 void from_half_avx512(const Unaligned16* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(to + i,
                     _mm512_maskz_cvtph_ps(every_lane, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  from_half_plain(from + i, to + i, count - i);
}

ToHalf best_to_half() {
  const Target target = widest_target();
  return target == Target::avx512 ? to_half_avx512 : target == Target::avx2 ? to_half_avx2 : to_half_plain;
}

FromHalf best_from_half() {
  const Target target = widest_target();
  return target == Target::avx512 ? from_half_avx512 : target == Target::avx2 ? from_half_avx2 : from_half_plain;
}
#else
ToHalf best_to_half() { return to_half_plain; }
FromHalf best_from_half() { return from_half_plain; }
#endif

TRIREME_INLINE uint16_t bfloat_of(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  // A NaN keeps its top bits, and is quiet: cut off, it might be an infinity.
  return static_cast<uint16_t>(magnitude(value) > static_cast<int32_t>(infinity_bits) ? (bits >> 16 | 0x40u) : rounded);
}

TRIREME_INLINE float float_of_bfloat(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

struct AddValues {
  const float* values;
  float* residual;
  int64_t count;
  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) residual[i] += values[i];
  }
};

struct Lose {
  const float* decoded;
  float* residual;
  int64_t count;
  TRIREME_INLINE void operator()() const {
    for (int64_t i = 0; i < count; ++i) residual[i] = finite_or_zero(residual[i] - decoded[i]);
  }
};

void encode_half(const FixedEncoding& work) {
  static const ToHalf to_half = best_to_half();
  static const FromHalf from_half = best_from_half();
  Unaligned16* codes = reinterpret_cast<Unaligned16*>(work.codes);
  if (!work.residual) return to_half(work.values, codes, work.count);
  constexpr int64_t piece = 1024;
  float decoded[piece];
  for (int64_t first = 0; first < work.count; first += piece) {
    const int64_t count = std::min(piece, work.count - first);
    float* v = work.residual + first;
    run_widest(AddValues{work.values + first, v, count});
    to_half(v, codes + first, count);
    from_half(codes + first, decoded, count);
    run_widest(Lose{decoded, v, count});
  }
}

void decode_half(const FixedDecoding& work) {
  static const FromHalf from_half = best_from_half();
  const Unaligned16* codes = reinterpret_cast<const Unaligned16*>(work.codes);
  if (!work.adding) return from_half(codes, work.values, work.count);
  constexpr int64_t piece = 1024;
  float decoded[piece];
  for (int64_t first = 0; first < work.count; first += piece) {
    const int64_t count = std::min(piece, work.count - first);
    from_half(codes + first, decoded, count);
    run_widest(AddValues{decoded, work.values + first, count});
  }
}

template <bool feedback>
struct EncodeBfloat {
  const FixedEncoding& work;
  TRIREME_INLINE void operator()() const {
    const float* __restrict values = work.values;
    float* __restrict residual = work.residual;
    Unaligned16* __restrict codes = reinterpret_cast<Unaligned16*>(work.codes);
    const int64_t count = work.count;
    for (int64_t i = 0; i < count; ++i) {
      const float v = feedback ? values[i] + residual[i] : values[i];
      const uint16_t code = bfloat_of(v);
      codes[i] = code;
      if constexpr (feedback) residual[i] = finite_or_zero(v - float_of_bfloat(code));
    }
  }
};

template <bool adding>
struct DecodeBfloat {
  const FixedDecoding& work;
  TRIREME_INLINE void operator()() const {
    const Unaligned16* __restrict codes = reinterpret_cast<const Unaligned16*>(work.codes);
    float* __restrict values = work.values;
    const int64_t count = work.count;
    for (int64_t i = 0; i < count; ++i)
      values[i] = adding ? values[i] + float_of_bfloat(codes[i]) : float_of_bfloat(codes[i]);
  }
};

}  // namespace

void encode_casts(const FixedFormat& format, const FixedEncoding& work) {
  if (format.kind == FixedKind::fp16) return encode_half(work);
  if (work.residual) return run_widest(EncodeBfloat<true>{work});
  run_widest(EncodeBfloat<false>{work});
}

void decode_casts(const FixedFormat& format, const FixedDecoding& work) {
  if (format.kind == FixedKind::fp16) return decode_half(work);
  if (work.adding) return run_widest(DecodeBfloat<true>{work});
  run_widest(DecodeBfloat<false>{work});
}

}  // namespace trireme
