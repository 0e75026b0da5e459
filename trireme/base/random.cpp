#include "trireme/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"

namespace trireme {

double normal(Key key, uint64_t index) {
  const double u = 1.0 - uniform(key, 2 * index);  // (0, 1]: the logarithm is finite
  const double v = uniform(key, 2 * index + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

Permutation::Permutation(uint64_t size, Key key) : size_(size), key_(key) {
  if (size == 0) fail("a permutation needs at least one element");
  half_bits_ = (std::bit_width(size - 1) + 1) / 2;
  if (half_bits_ == 0) half_bits_ = 1;
}

uint64_t Permutation::operator()(uint64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = place >> half_bits_, right = place & mask;
    for (uint64_t round = 0; round < 8; ++round) {
      const uint64_t next = left ^ (bits64(key_.with(round), right) & mask);
      left = right;
      right = next;
    }
    place = (left << half_bits_) | right;
  } while (place >= size_);
  return place;
}

}  // namespace trireme
