#include "trireme/comm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/observe/board.h"

namespace trireme {

Segment::~Segment() {
  if (data_) munmap(data_, bytes_);
}

namespace {

constexpr size_t huge_page = 2 << 20;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1; younger than some C libraries
#endif

// An address for so many bytes at which huge pages could lie.
void* aligned_address(size_t bytes) {
  void* space = mmap(nullptr, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(space), aligned = (first + huge_page - 1) / huge_page * huge_page;
  if (aligned > first) munmap(space, aligned - first);
  munmap(reinterpret_cast<void*>(aligned + bytes), first + huge_page - aligned);
  return reinterpret_cast<void*>(aligned);
}

}  // namespace

// Passes over long memory in huge pages are an eighth faster. Where the system has none to give, small ones do.
void Segment::map(int descriptor, size_t bytes, const std::string& name) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* place = bytes < huge_page ? nullptr : aligned_address(bytes);
  void* memory = mmap(place, bytes, PROT_READ | PROT_WRITE, place ? flags | MAP_FIXED : flags, descriptor, 0);
  if (memory == MAP_FAILED) fail_errno(name);
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  if (place) madvise(memory, bytes / huge_page * huge_page, descriptor < 0 ? MADV_HUGEPAGE : MADV_COLLAPSE);
}

Segment Segment::create(const std::string& name, size_t bytes) {
  // Made under another name and renamed at full size, so that nobody maps a file that is still growing.
  const auto building = name + ".building";
  const int descriptor = ::open(building.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) fail_errno(building);
  const int full = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (full != 0) {
    ::close(descriptor);
    ::unlink(building.c_str());
    fail("no {} of shared memory left for {}", human_bytes(static_cast<double>(bytes)), name);
  }
  Segment segment;
  segment.map(descriptor, bytes, name);
  ::close(descriptor);
  if (::rename(building.c_str(), name.c_str()) != 0) fail_errno(name);
  return segment;
}

Segment Segment::open_whole(const std::string& name, double timeout_s) { return open(name, 0, timeout_s); }

Segment Segment::open(const std::string& name, size_t bytes, double timeout_s) {
  const int64_t deadline = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
  while (true) {
    const int descriptor = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status{};
    if (descriptor >= 0 && fstat(descriptor, &status) == 0 &&
        (bytes == 0 || static_cast<size_t>(status.st_size) == bytes)) {
      Segment segment;
      segment.map(descriptor, static_cast<size_t>(status.st_size), name);
      ::close(descriptor);
      return segment;
    }
    if (descriptor >= 0) ::close(descriptor);
    if (monotonic_ns() > deadline)
      fail("{} did not appear within {}: is another rank missing?", name, human_seconds(timeout_s));
    usleep(1000);
  }
}

Segment Segment::anonymous(size_t bytes) {
  Segment segment;
  segment.map(-1, bytes, "memory");
  return segment;
}

void Segment::unlink(const std::string& name) { ::unlink(name.c_str()); }

}  // namespace trireme
