#include "trireme/fleet/python_random.h"

#include <bit>

namespace trireme::fleet {

namespace {

// How the generator's authors fill the state from one word.
void fill(std::array<uint32_t, 624>& state, uint32_t seed) {
  state[0] = seed;
  for (uint32_t i = 1; i < state.size(); ++i) state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
}

}  // namespace

// Python seeds by the array of an integer's 32-bit words, lowest first, and at least one of them.
PythonRandom::PythonRandom(uint64_t seed) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const size_t keys = key[1] != 0 ? 2 : 1;
  fill(state_, 19650218U);
  size_t i = 1, j = 0;
  const auto wrap = [&] {
    if (i < words) return;
    state_[0] = state_[words - 1];
    i = 1;
  };
  for (size_t k = 0; k < words; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
    ++i;
    j = (j + 1) % keys;
    wrap();
  }
  for (size_t k = 0; k + 1 < words; ++k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
    ++i;
    wrap();
  }
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  for (size_t i = 0; i < words; ++i) {
    const uint32_t mixed = (state_[i] & 0x80000000U) | (state_[(i + 1) % words] & 0x7fffffffU);
    state_[i] = state_[(i + 397) % words] ^ (mixed >> 1) ^ ((mixed & 1) != 0 ? 0x9908b0dfU : 0U);
  }
  place_ = 0;
}

uint32_t PythonRandom::next() {
  if (place_ == words) refill();
  uint32_t x = state_[place_++];
  x ^= x >> 11;
  x ^= (x << 7) & 0x9d2c5680U;
  x ^= (x << 15) & 0xefc60000U;
  return x ^ (x >> 18);
}

double PythonRandom::random() {
  const uint32_t high = next() >> 5, low = next() >> 6;
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

double PythonRandom::uniform(double low, double high) { return low + (high - low) * random(); }

uint64_t PythonRandom::bits(int count) {
  if (count <= 32) return next() >> (32 - count);
  const uint64_t low = next();
  return low | (static_cast<uint64_t>(next() >> (64 - count)) << 32);
}

uint64_t PythonRandom::below(uint64_t bound) {
  const int width = std::bit_width(bound);
  uint64_t drawn = bits(width);
  while (drawn >= bound) drawn = bits(width);
  return drawn;
}

// Python draws from a shrinking pool while that is small, and beyond 21 items draws again what it had.
std::pair<size_t, size_t> PythonRandom::two_of(size_t count) {
  const size_t first = below(count);
  if (count <= 21) {
    const size_t second = below(count - 1);
    return {first, second == first ? count - 1 : second};
  }
  size_t second = below(count);
  while (second == first) second = below(count);
  return {first, second};
}

}  // namespace trireme::fleet
