// Random numbers as Python 3's `random` draws them, from the same seeds: the published job generator and simulator use
// it, and only the same numbers make the same jobs. (Matsumoto and Nishimura's MT19937; doubles of 53 bits; integers by
// rejection.) For our own random choices base/random.h is the right place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme::fleet {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  double random();                          // [0, 1), 53 bits
  double uniform(double low, double high);  // low + (high - low) · random()
  uint64_t below(uint64_t bound);           // [0, bound); randrange and choice draw by it

  // random.sample(range(count), 2)
  std::pair<size_t, size_t> two_of(size_t count);

  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  static constexpr size_t words = 624;

  uint32_t next();
  void refill();
  uint64_t bits(int count);  // up to 64

  std::array<uint32_t, words> state_;
  size_t place_ = words;
};

}  // namespace trireme::fleet
