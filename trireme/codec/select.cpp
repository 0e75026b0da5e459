#include "trireme/codec/select.h"

#include <cmath>
#include <functional>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "trireme/base/random.h"
#include "trireme/codec/scratch.h"
#include "trireme/codec/targets.h"

namespace trireme {

namespace {

constexpr int64_t piece = 4096;  // elements that are looked at between two questions for room
constexpr int64_t slack = 16;    // that whole registers are written beyond what was found

// Adds the values to the residual and notes the places of what is large; `places` has room for all and the slack.
using Collect = uint32_t* (*)(const float* values, float* residual, int64_t begin, int64_t end, int32_t least,
                              uint32_t* places);

uint32_t* collect_plain(const float* values, float* residual, int64_t begin, int64_t end, int32_t least,
                        uint32_t* places) {
  for (int64_t i = begin; i < end; ++i) {
    float v = values[i];
    if (residual) residual[i] = v += residual[i];
    *places = static_cast<uint32_t>(i);
    places += magnitude(v) >= least;
  }
  return places;
}

#if defined(__x86_64__)
TRIREME_TARGET_AVX512 uint32_t* collect_avx512(const float* values, float* residual, int64_t begin, int64_t end,
                                               int32_t least, uint32_t* places) {
  const __m512i magnitudes = _mm512_set1_epi32(0x7fffffff), bound = _mm512_set1_epi32(least);
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    __m512 v = _mm512_loadu_ps(values + i);
    if (residual) {
      v = _mm512_add_ps(v, _mm512_loadu_ps(residual + i));
      _mm512_storeu_ps(residual + i, v);
    }
    const __mmask16 found = _mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_castps_si512(v), magnitudes), bound);
    const __m512i here = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(i))), lanes);
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi32(found, here));
    places += __builtin_popcount(found);
  }
  return collect_plain(values, residual, i, end, least, places);
}

TRIREME_TARGET_AVX2 uint32_t* collect_avx2(const float* values, float* residual, int64_t begin, int64_t end,
                                           int32_t least, uint32_t* places) {
  const __m256i magnitudes = _mm256_set1_epi32(0x7fffffff), below = _mm256_set1_epi32(least - 1);
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    __m256 v = _mm256_loadu_ps(values + i);
    if (residual) {
      v = _mm256_add_ps(v, _mm256_loadu_ps(residual + i));
      _mm256_storeu_ps(residual + i, v);
    }
    const __m256i large = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(v), magnitudes), below);
    for (auto found = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(large))); found; found &= found - 1)
      *places++ = static_cast<uint32_t>(i + __builtin_ctz(found));
  }
  return collect_plain(values, residual, i, end, least, places);
}

Collect best_collect() {
  const Target target = widest_target();
  return target == Target::avx512 ? collect_avx512 : target == Target::avx2 ? collect_avx2 : collect_plain;
}
#else
Collect best_collect() { return collect_plain; }
#endif

Scratch<uint32_t>& places_of_thread() {
  thread_local Scratch<uint32_t> places;
  return places;
}

Scratch<int32_t>& magnitudes_of_thread() {
  thread_local Scratch<int32_t> magnitudes;
  return magnitudes;
}

int32_t nth_largest(int32_t* magnitudes, int64_t count, int64_t nth) {
  std::nth_element(magnitudes, magnitudes + nth, magnitudes + count, std::greater<>());
  return magnitudes[nth];
}

// What the sample says: a magnitude that `kept` elements and a few more reach. The sample is whole cache lines at
// places that do not follow any pattern of the tensor; `margin` is in standard deviations, of lines that are alike
// within, as rows of gradients are.
int32_t probable_least(const float* values, const float* residual, int64_t count, int64_t kept, double margin) {
  constexpr int64_t lines = 1024, line = 16;
  if (count < 4 * lines * line) return 0;
  int32_t* magnitudes = magnitudes_of_thread().room(lines * line);
  for (int64_t i = 0; i < lines; ++i) {
    const auto first = static_cast<int64_t>(bits64(Key{0x6c65617374}, static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(count / line)) *
                       line;
    for (int64_t k = 0; k < line; ++k)
      magnitudes[i * line + k] = magnitude(residual ? values[first + k] + residual[first + k] : values[first + k]);
  }
  const double expected = static_cast<double>(kept) / static_cast<double>(count) * lines * line;
  const double rank = expected + margin * std::sqrt(expected) + 8;
  return rank >= lines * line ? 0 : nth_largest(magnitudes, lines * line, static_cast<int64_t>(rank));
}

// Of the places found, those of the `kept` largest, in place.
void keep_largest(const float* v, uint32_t* places, int64_t found, int64_t kept) {
  int32_t* magnitudes = magnitudes_of_thread().room(found);
  for (int64_t i = 0; i < found; ++i) magnitudes[i] = magnitude(v[places[i]]);
  const int32_t last = nth_largest(magnitudes, found, kept - 1);
  int64_t ties = kept - std::count_if(magnitudes, magnitudes + kept, [&](int32_t m) { return m > last; });
  uint32_t* to = places;
  for (int64_t i = 0; i < found; ++i) {
    const int32_t m = magnitude(v[places[i]]);
    if (m > last || (m == last && ties-- > 0)) *to++ = places[i];
  }
}

}  // namespace

std::span<const uint32_t> select_at_least(const float* values, float* residual, int64_t count, int32_t least) {
  static const Collect collect = best_collect();
  auto& scratch = places_of_thread();
  int64_t found = 0;
  for (int64_t begin = 0; begin < count; begin += piece) {
    uint32_t* places = scratch.room(found + piece + slack, found);
    found = collect(values, residual, begin, std::min(count, begin + piece), least, places + found) - places;
  }
  return {scratch.data(), static_cast<size_t>(found)};
}

std::span<const uint32_t> select_largest(const float* values, float* residual, int64_t count, int64_t kept) {
  double margin = 6;
  const int32_t least = kept < count ? probable_least(values, residual, count, kept, margin) : 0;
  auto found = select_at_least(values, residual, count, least);
  const float* v = residual ? residual : values;
  while (static_cast<int64_t>(found.size()) < kept) {  // the sample was not like the rest
    margin = 8 * margin + 8;
    found = select_at_least(v, nullptr, count, margin > 1000 ? 0 : probable_least(v, nullptr, count, kept, margin));
  }
  if (static_cast<int64_t>(found.size()) > kept)
    keep_largest(v, places_of_thread().data(), static_cast<int64_t>(found.size()), kept);
  return found.first(static_cast<size_t>(kept));
}

}  // namespace trireme
