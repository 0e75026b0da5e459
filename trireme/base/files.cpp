#include "trireme/base/files.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/paths.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme {
namespace {

namespace fs = std::filesystem;

// Fails with the current errno, and with what to do about it where we know.
[[noreturn]] void fail_file(const char* doing, const fs::path& path) {
  const int error = errno;  // building the text may change it
  const auto what = fmt::format("{} {}", doing, path.string());
  if (error == ENOSPC) fail("{}: disk full; free some space there or choose a folder on another disk", what);
  if (error == EDQUOT) fail("{}: your disk quota is used up; free some space or choose a folder on another disk", what);
  errno = error;
  fail_errno(what);
}

// Repeats a system call for as long as signals interrupt it.
template <class Call>
auto uninterrupted(Call call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

int open_file(const fs::path& path, int flags) {
  const int descriptor = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (descriptor == -1) fail_file("opening", path);
  return descriptor;
}

int open_flags(File::Mode mode) {
  switch (mode) {
    case File::Mode::read: return O_RDONLY;
    case File::Mode::create: return O_RDWR | O_CREAT | O_TRUNC;
    case File::Mode::append: return O_RDWR | O_CREAT | O_APPEND;
  }
  fail("unknown file mode {}", static_cast<int>(mode));
}

// "runs/a/" and "runs/a" name the same thing, but only the latter has the parent "runs".
fs::path without_trailing_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

fs::path folder_of(const fs::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// A name beside `path` that no other thread, process or host chooses.
fs::path temporary_beside(const fs::path& path) {
  std::random_device random;
  auto name = path;
  name += fmt::format(".{:08x}{:08x}.tmp", random(), random());
  return name;
}

void rename_entry(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == -1) {
    fail_file("renaming", fmt::format("{} to {}", from.string(), to.string()));
  }
}

}  // namespace

File::File(fs::path path, Mode mode) : path_(std::move(path)), descriptor_(open_file(path_, open_flags(mode))) {}

File::~File() {
  if (descriptor_ != -1) ::close(descriptor_);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void File::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (written == -1) fail_file("writing", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void File::pread_all(std::span<std::byte> out, uint64_t offset) const {
  size_t found = 0;
  while (found < out.size()) {
    const auto rest = out.subspan(found);
    const auto place = static_cast<off_t>(offset + found);
    const auto count = uninterrupted([&] { return ::pread(descriptor_, rest.data(), rest.size(), place); });
    if (count == -1) fail_file("reading", path_);
    if (count == 0) {
      fail("reading {}: expected {} bytes at offset {}, found {}; the file was cut short", path_.string(), out.size(),
           offset, found);
    }
    found += static_cast<size_t>(count);
  }
}

void File::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) == -1) fail_file("syncing", path_);
}

uint64_t File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) == -1) fail_file("asking the size of", path_);
  return static_cast<uint64_t>(status.st_size);
}

MappedFile::MappedFile(const fs::path& path) {
  std::error_code ignored;  // what the status cannot tell, opening will
  const auto status = fs::status(path, ignored);
  if (status.type() == fs::file_type::not_found) refuse_missing(path, "file");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    refuse("{}: this is a folder or a device, not a plain file", path.string());
  }
  const File file(path, File::Mode::read);
  const auto size = static_cast<size_t>(file.size());
  if (size == 0) refuse("{}: the file is empty", path.string());
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) fail_file("mapping", path);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void write_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  const auto temporary = temporary_beside(path);
  try {
    File file(temporary, File::Mode::create);
    file.write_all(bytes);
    file.sync();
    rename_entry(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_folder(folder_of(path));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> made;  // the innermost first
  for (auto name = without_trailing_slash(path); !name.empty() && !fs::exists(name, error); name = name.parent_path())
    made.push_back(name);
  fs::create_directories(path, error);
  if (error) {
    const auto link = dangling_link(path);
    refuse("cannot make the folder {}: {}", path.string(), link.empty() ? error.message() : link);
  }
  // What is written durably into a folder lasts no longer than the folder's own name.
  for (auto name = made.rbegin(); name != made.rend(); ++name) sync_folder(folder_of(*name));
}

HeldFolder::HeldFolder(const fs::path& path) : descriptor_(open_file(path, O_RDONLY | O_DIRECTORY)) {}

HeldFolder::~HeldFolder() { ::close(descriptor_); }

bool HeldFolder::is_at(const fs::path& path) const {
  struct stat held{}, named{};
  if (::fstat(descriptor_, &held) != 0 || ::stat(path.c_str(), &named) != 0) return false;
  return held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

void remove_tree(const std::filesystem::path& path) {
  // Children before their folder, links as themselves, and never out of this file system's tree.
  const auto remove_one = [](const char* name, const struct stat*, int, FTW*) {
    ::remove(name);
    return 0;
  };
  ::nftw(path.c_str(), remove_one, /*descriptors=*/16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

void sync_folder(const fs::path& path) {
  struct Folder {
    int descriptor;
    ~Folder() { ::close(descriptor); }
  } folder{open_file(path, O_RDONLY | O_DIRECTORY)};
  const int result = uninterrupted([&] { return ::fsync(folder.descriptor); });
  // Some network filesystems cannot sync folders, and say so by EINVAL: there is nothing more that we could do.
  if (result == -1 && errno != EINVAL) fail_file("syncing", path);
}

void rename_durably(const fs::path& from, const fs::path& to) {
  const auto old_name = without_trailing_slash(from);
  const auto new_name = without_trailing_slash(to);
  std::error_code ignored;  // what the status cannot tell, renaming will
  const bool is_folder = fs::is_directory(fs::symlink_status(old_name, ignored));
  if (is_folder) sync_folder(old_name);  // so that the new name stands for durable entries
  rename_entry(old_name, new_name);
  sync_folder(folder_of(new_name));
  if (folder_of(old_name) != folder_of(new_name)) sync_folder(folder_of(old_name));
}

uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&& other) noexcept = default;
Checksum& Checksum::operator=(Checksum&& other) noexcept = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}
uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->xxh); }

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

RateLimit::RateLimit(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second), paid_until_(Clock::now()) {}

void RateLimit::take(uint64_t bytes) {
  using namespace std::chrono_literals;
  if (bytes_per_second_ == 0) return;
  const std::chrono::duration<double> price(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  Clock::time_point mine;
  {
    std::lock_guard lock(mutex_);
    paid_until_ = std::max(paid_until_, Clock::now() - 100ms) + std::chrono::duration_cast<Clock::duration>(price);
    mine = paid_until_;
  }
  std::this_thread::sleep_until(mine);
}

}  // namespace trireme
