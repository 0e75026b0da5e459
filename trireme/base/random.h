// Random numbers as pure functions of what they are for, so that they do not depend on how work is split.
// A Key is a hash of names and numbers (seed, "dropout", step, layer …); `bits(key, i)` is the i-th word of that
// stream. The same code runs in CUDA kernels, so host and card draw the same masks.
#pragma once

#include <cstdint>
#include <string_view>

#ifdef __CUDACC__
#define TRIREME_HOST_DEVICE __host__ __device__
#else
#define TRIREME_HOST_DEVICE
#endif

namespace trireme {

// SplitMix64's finalizer: a bijection on 64 bits in which every input bit moves every output bit.
TRIREME_HOST_DEVICE constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Key {
  uint64_t value = 0;

  TRIREME_HOST_DEVICE constexpr Key with(uint64_t number) const { return {mix64(value ^ mix64(number))}; }
  constexpr Key with(std::string_view name) const {
    uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return with(hash);
  }
};

// 32 random bits for place `index` of the stream `key`: two rounds of a 32-bit avalanche, one per half of the key.
// Written without 64-bit multiplications so that compilers vectorise loops over `index`.
TRIREME_HOST_DEVICE constexpr uint32_t bits32(Key key, uint32_t index) {
  uint32_t x = index * 0x9e3779b9U + static_cast<uint32_t>(key.value);
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  x ^= (x >> 16) ^ static_cast<uint32_t>(key.value >> 32);
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

constexpr uint64_t bits64(Key key, uint64_t index) { return mix64(key.value ^ mix64(index)); }

// Uniform in [0, 1) with 53 bits.
constexpr double uniform(Key key, uint64_t index) { return static_cast<double>(bits64(key, index) >> 11) * 0x1p-53; }

// Standard normal, by Box and Muller.
double normal(Key key, uint64_t index);

// A permutation of [0, size) computed place by place: a Feistel network on the next power of four, walked until it
// lands inside. Constant memory, random access, the same on every rank.
class Permutation {
 public:
  Permutation(uint64_t size, Key key);
  uint64_t operator()(uint64_t place) const;
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  int half_bits_;
  Key key_;
};

}  // namespace trireme
