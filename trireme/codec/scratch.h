// Memory that a thread keeps from one message to the next. It grows and is never filled: what is asked for holds
// whatever was in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

namespace trireme {

template <class T>
class Scratch {
 public:
  // At least `count` elements, of which the first `kept` stay what they were.
  T* room(int64_t count, int64_t kept = 0) {
    if (count > size_) {
      const int64_t size = std::max(count, size_ + size_ / 2);
      std::unique_ptr<T[]> larger(new T[static_cast<size_t>(size)]);
      if (kept > 0) std::memcpy(larger.get(), memory_.get(), static_cast<size_t>(kept) * sizeof(T));
      memory_ = std::move(larger);
      size_ = size;
    }
    return memory_.get();
  }
  T* data() { return memory_.get(); }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t size_ = 0;
};

}  // namespace trireme
