#include "trireme/base/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/units.h"

namespace trireme {

namespace {

constexpr size_t huge_page = 2 << 20;
#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1; younger than some C libraries
#endif

constexpr const char* prefix = "trireme-";
constexpr size_t digits = 16;  // of each half of a name

// An address for so many bytes at which huge pages could lie.
void* aligned_address(size_t bytes) {
  void* space = mmap(nullptr, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(space), aligned = (first + huge_page - 1) / huge_page * huge_page;
  if (aligned > first) munmap(space, aligned - first);
  munmap(reinterpret_cast<void*>(aligned + bytes), first + huge_page - aligned);
  return reinterpret_cast<void*>(aligned);
}

std::string folder() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path().string();
}

std::optional<SegmentName> read_name(const std::string& text) {
  if (text.size() != 2 * digits || text.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  return SegmentName{{std::stoull(text.substr(0, digits), nullptr, 16), std::stoull(text.substr(digits), nullptr, 16)}};
}

// The lock of a segment's maker keeps all others out. The others only ever ask for one that keeps nobody else out, and
// do not wait for it: none of them can be taken for the maker.
bool maker_lives(int descriptor) { return flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK; }

// Calls `visit` with each named segment of this user, and whether its maker lives.
void visit_named(const std::function<void(const SegmentName& name, bool lives)>& visit) {
  const auto place = folder();
  DIR* listing = opendir(place.c_str());
  if (!listing) return;
  while (const dirent* entry = readdir(listing)) {
    const std::string file = entry->d_name;
    if (file.rfind(prefix, 0) != 0) continue;
    const auto name = read_name(file.substr(std::strlen(prefix)));
    if (!name) continue;
    const int descriptor = openat(dirfd(listing), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat status{};
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid())
      visit(*name, maker_lives(descriptor));
    ::close(descriptor);
  }
  closedir(listing);
}

// What is wrong with a file that should be a segment of this user; empty where nothing is.
std::string problem_of(const struct stat& status, size_t bytes) {
  const auto size = static_cast<size_t>(status.st_size);
  if (!S_ISREG(status.st_mode)) return "is no plain file";
  if (status.st_uid != geteuid()) return fmt::format("belongs to user {} instead of {}", status.st_uid, geteuid());
  if ((status.st_mode & 077) != 0) return fmt::format("is open to other users (mode {:04o})", status.st_mode & 07777);
  if (size == 0) return "is empty";
  if (bytes != 0 && size != bytes) return fmt::format("has {} bytes instead of {}", size, bytes);
  return "";
}

}  // namespace

SegmentName SegmentName::random() {
  SegmentName name;
  for (size_t have = 0; have < sizeof name.words;) {
    const ssize_t count = getrandom(reinterpret_cast<std::byte*>(name.words) + have, sizeof name.words - have, 0);
    if (count < 0 && errno != EINTR) fail_errno("getrandom");
    if (count > 0) have += static_cast<size_t>(count);
  }
  return name;
}

SegmentName SegmentName::parse(const std::string& text, const std::string& source) {
  const auto name = read_name(text);
  if (!name) refuse("{} is {}, which is no name of shared memory ({} digits of 0-9 and a-f)", source, text, 2 * digits);
  return *name;
}

std::string SegmentName::text() const { return fmt::format("{:016x}{:016x}", words[0], words[1]); }
std::string SegmentName::path() const { return folder() + "/" + prefix + text(); }

Segment::~Segment() {
  if (data_) munmap(data_, bytes_);
  if (lock_ >= 0) hide();
}

// Passes over long memory in huge pages are an eighth faster. Where the system has none to give, small ones do.
void Segment::map(int descriptor, size_t bytes, const std::string& path) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* place = bytes < huge_page ? nullptr : aligned_address(bytes);
  void* memory = mmap(place, bytes, PROT_READ | PROT_WRITE, place ? flags | MAP_FIXED : flags, descriptor, 0);
  if (memory == MAP_FAILED) fail_errno(path);
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  if (place) madvise(memory, bytes / huge_page * huge_page, descriptor < 0 ? MADV_HUGEPAGE : MADV_COLLAPSE);
}

Segment Segment::create(size_t bytes) {
  while (true) {
    Segment segment;
    segment.name_ = SegmentName::random();
    const auto path = segment.name_.path();
    segment.lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (segment.lock_ < 0) fail_errno(path);
    while (flock(segment.lock_, LOCK_EX) != 0) {
      if (errno != EINTR) fail_errno("the lock of " + path);
    }
    struct stat status{};
    if (fstat(segment.lock_, &status) != 0) fail_errno(path);
    if (status.st_nlink == 0) continue;  // somebody swept it away before it was locked
    if (posix_fallocate(segment.lock_, 0, static_cast<off_t>(bytes)) != 0)
      fail("no {} of shared memory left for {}", human_bytes(static_cast<double>(bytes)), path);
    segment.map(segment.lock_, bytes, path);
    return segment;
  }
}

Segment Segment::open(const SegmentName& name, size_t bytes) {
  const auto path = name.path();
  // Not waiting: what another user put there may be a pipe.
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail_errno(path);
  struct stat status{};
  const auto problem = fstat(descriptor, &status) == 0 ? problem_of(status, bytes) : std::string(std::strerror(errno));
  Segment segment;
  try {
    if (!problem.empty()) fail("{} {}: it is not what a rank of this job made", path, problem);
    segment.map(descriptor, static_cast<size_t>(status.st_size), path);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
  segment.name_ = name;
  return segment;
}

Segment Segment::anonymous(size_t bytes) {
  Segment segment;
  segment.map(-1, bytes, "memory");
  return segment;
}

std::vector<SegmentName> Segment::living() {
  std::vector<SegmentName> names;
  visit_named([&](const SegmentName& name, bool lives) {
    if (lives) names.push_back(name);
  });
  return names;
}

void Segment::sweep() {
  visit_named([](const SegmentName& name, bool lives) {
    if (!lives) ::unlink(name.path().c_str());
  });
}

void Segment::hide() {
  if (name_.is_set()) ::unlink(name_.path().c_str());
  if (lock_ >= 0) ::close(std::exchange(lock_, -1));
}

}  // namespace trireme
