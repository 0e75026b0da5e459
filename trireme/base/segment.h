// A piece of memory that other processes of this user and this host can map. It is a file in shared memory whose name
// is a random number: only who makes it knows the name and passes it on, so nobody can make that file first. A segment
// has its name only until all who are to map it have done so. While it has one, its maker holds a lock on it, which the
// system takes away when the maker ends, however it ends. So what a killed job left can be told from what another job
// is about to map, also between containers that share this memory and number their processes alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

// 128 bits. Plain bytes: ranks pass it on in memory that they share already.
struct SegmentName {
  uint64_t words[2] = {};  // both 0: none

  static SegmentName random();
  // What text() gave; refuses anything else, with `source` in the message.
  static SegmentName parse(const std::string& text, const std::string& source);

  bool is_set() const { return words[0] != 0 || words[1] != 0; }
  std::string text() const;  // 32 digits
  std::string path() const;
};

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept { swap(other); }
  Segment& operator=(Segment&& other) noexcept {
    swap(other);
    return *this;
  }

  // Makes a zeroed segment with a new name, which it keeps until hide() or its end.
  static Segment create(size_t bytes);
  // Maps another process's segment of so many bytes (0: whatever it has). Fails unless it is a plain file of this user
  // that nobody else may open.
  static Segment open(const SegmentName& name, size_t bytes = 0);
  // Memory of this process alone.
  static Segment anonymous(size_t bytes);

  // The names of this user's segments whose makers live.
  static std::vector<SegmentName> living();
  // Removes the names of this user's segments whose makers are gone.
  static void sweep();

  // Removes the name. The memory stays as long as anybody maps it.
  void hide();

  const SegmentName& name() const { return name_; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Segment& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(name_, other.name_);
    std::swap(lock_, other.lock_);
  }
  void map(int descriptor, size_t bytes, const std::string& path);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  SegmentName name_;
  int lock_ = -1;  // held by the maker while the name is there
};

}  // namespace trireme
