// Numbers as codes within an error that nothing exceeds, and the codes as planes of bytes, so that bytes that are alike
// lie together.
//
//   absolute   |x − x'| ≤ bound: x' = q · step, step the largest float ≤ 2 · bound, q the nearest whole number, coded
//   as
//              0, −1, 1, −2, 2, … in as few bytes as nearly all of a chunk need
//   relative   |x − x'| ≤ bound · |x|: x' has the m highest bits of x's fraction, rounded, where 2^−(m+1) ≤ bound; the
//              exponent is the code's highest byte, sign and fraction the lower ones
//
// What cannot be said within the bound (NaN, infinities, too large, with a relative bound subnormal numbers) is an
// outlier: its code is a mark, and the number itself stands elsewhere.
#pragma once

#include <cstdint>

#include "trireme/spec/config.h"

namespace trireme {

constexpr int64_t bound_chunk = 32768;  // elements that are coded together
constexpr uint32_t outlier_code = 0xffffffffu;

class BoundFormat {
 public:
  // Refuses bounds that fp32 cannot keep.
  BoundFormat(BoundKind kind, double bound);

  bool relative() const { return relative_; }
  double bound() const { return bound_; }
  int planes() const { return relative_ ? 4 : 3; }  // of a chunk, at most
  // The code that marks an outlier in a chunk of so many planes.
  uint32_t mark(int planes) const { return relative_ ? 0xff000000u : (uint32_t{1} << 8 * planes) - 1; }

  // The code of each number, outlier_code where there is none.
  void quantise(const float* values, int64_t count, uint32_t* codes) const;
  // One number's, found slowly and without missing any that has one.
  uint32_t exact_code(float value) const;
  // What codes mean; of marks anything.
  void restore(const uint32_t* codes, int64_t count, float* values) const;

 private:
  bool relative_;
  double bound_;
  float step_ = 0, inverse_ = 0, float_bound_ = 0;  // absolute; the largest float that is not above the bound
  int fraction_ = 0;                                // relative: bits of the fraction
};

// How many codes need more bytes than one, and than two (their marks included).
struct CodeCounts {
  int64_t outliers, above_one, above_two;
};
CodeCounts count_codes(const uint32_t* codes, int64_t count);

// Byte p of each code to planes + p · bound_chunk, and back.
void split_planes(const uint32_t* codes, int64_t count, int planes, uint8_t* bytes);
void join_planes(const uint8_t* bytes, int64_t count, int planes, uint32_t* codes);

}  // namespace trireme
