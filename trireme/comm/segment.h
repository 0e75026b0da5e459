// A piece of memory that other processes of this host can map by name.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace trireme {

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }

  // Makes a zeroed segment of that name (a path in shared memory), replacing an older one.
  static Segment create(const std::string& name, size_t bytes);
  // Maps another process's segment; waits up to `timeout_s` for it to appear with its full size.
  static Segment open(const std::string& name, size_t bytes, double timeout_s);
  // The same with whatever size it has.
  static Segment open_whole(const std::string& name, double timeout_s);
  // Memory of this process alone.
  static Segment anonymous(size_t bytes);
  static void unlink(const std::string& name);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Segment& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void map(int descriptor, size_t bytes, const std::string& name);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace trireme
