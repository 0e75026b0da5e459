#include "trireme/base/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/log.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

struct Range {
  off_t begin, length;
};
constexpr Range first_process{0, 1}, other_processes{1, 1}, whole_job{0, 2};

enum class Answer { locked, taken, unsupported };

Answer set_lock(int descriptor, short type, Range range, const fs::path& path) {
  struct flock wanted{};
  wanted.l_type = type;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = range.begin;
  wanted.l_len = range.length;
  while (::fcntl(descriptor, F_OFD_SETLK, &wanted) == -1) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EACCES) return Answer::taken;
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL) return Answer::unsupported;
    fail_errno("locking " + path.string());
  }
  return Answer::locked;
}

bool is_locked(int descriptor, Range range) {
  struct flock wanted{};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = range.begin;
  wanted.l_len = range.length;
  return ::fcntl(descriptor, F_OFD_GETLK, &wanted) == 0 && wanted.l_type != F_UNLCK;
}

// Who has the folder, as the note says. The note comes a moment after the lock.
std::string owner(int descriptor) {
  char note[512];
  for (int tries = 0; tries < 50; ++tries) {
    const ssize_t length = ::pread(descriptor, note, sizeof note, 0);
    const std::string_view text(note, length > 0 ? static_cast<size_t>(length) : 0);
    if (text.ends_with('\n')) return std::string(text.substr(0, text.size() - 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "a process that has left no note in it";
}

[[noreturn]] void refuse_taken(const fs::path& folder, int descriptor) {
  if (is_locked(descriptor, first_process)) {
    refuse("{} is in use by {}: let that end, or stop it (SIGTERM lets it save), or choose another folder",
           folder.string(), owner(descriptor));
  }
  refuse("{} is still in use by other ranks of the job of {}, which has ended: they leave within seconds, try again",
         folder.string(), owner(descriptor));
}

// The folder that holds the name of another: "runs" of "runs/a/".
fs::path above(const fs::path& folder) {
  const auto name = folder.has_filename() ? folder : folder.parent_path();
  return name.has_parent_path() ? name.parent_path() : ".";
}

constexpr int most_tries = 10'000;  // to make a folder and take it before somebody removes it

int open_lock(const fs::path& path, int flags) { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }

}  // namespace

void FolderLock::lock() {
  const auto path = folder_ / "lock";
  int made = 0;  // the folder, again
  while (true) {
    descriptor_ = open_lock(path, O_RDWR | O_CREAT | O_EXCL);
    const bool is_new = descriptor_ >= 0;
    if (!is_new && errno == EEXIST) descriptor_ = open_lock(path, O_RDWR);
    if (descriptor_ < 0 && errno == ENOENT) {  // the file was taken away in between, or the folder with it
      if (made++ == most_tries) refuse("{} vanishes as often as it is made: another process removes it", folder_.string());
      if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) make_folder(folder_);  // or says why it cannot
      continue;
    }
    if (is_new && made_ == Made::nothing) made_ = Made::file;
    if (descriptor_ < 0)
      refuse("{}: {}; a job needs a folder that it can write into", path.string(), std::strerror(errno));
    const auto answer = set_lock(descriptor_, F_WRLCK, whole_job, path);
    if (answer == Answer::taken) refuse_taken(folder_, descriptor_);
    if (answer == Answer::unsupported) {
      log::warn("the file system of {} has no locks: nothing keeps a second run out of this folder", folder_.string());
    }
    struct stat status{};
    if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) break;
    ::close(std::exchange(descriptor_, -1));  // a run that was refused took the file away in between
  }
  if (made > 0) sync_folder(above(folder_));
  first_ = true;
  const auto note = fmt::format("process {} on host {}, since {}\n", ::getpid(), host_name(), time_now());
  if (::ftruncate(descriptor_, 0) != 0) fail_errno(path.string());
  if (::pwrite(descriptor_, note.data(), note.size(), 0) != static_cast<ssize_t>(note.size()))
    fail("{}: {}", path.string(), errno == ENOSPC ? "disk full; free some space there" : std::strerror(errno));
  ::fsync(descriptor_);  // for readers on other hosts; where it cannot be synced only the message is the poorer
  set_lock(descriptor_, F_UNLCK, other_processes, path);
}

FolderLock FolderLock::take(const fs::path& folder) {
  if (auto fresh = take_new(folder)) return std::move(*fresh);
  FolderLock taken(folder, Made::nothing);
  taken.lock();
  return taken;
}

std::optional<FolderLock> FolderLock::take_new(const fs::path& folder) {
  const auto name = folder.has_filename() ? folder : folder.parent_path();  // "runs/a/" is "runs/a"
  std::error_code error;
  if (!fs::exists(above(folder), error)) make_folder(above(folder));
  const bool made = fs::create_directory(name, error);
  const bool vanished = error == std::errc::file_exists && !fs::exists(fs::symlink_status(name));
  if (error && !vanished) refuse("cannot make the folder {}: {}", folder.string(), error.message());
  if (!made) return std::nullopt;
  sync_folder(above(folder));
  FolderLock taken(folder, Made::folder);
  taken.lock();
  return taken;
}

FolderLock FolderLock::join(const fs::path& folder, double patience_s) {
  FolderLock joined(folder, Made::nothing);
  const auto path = folder / "lock";
  for (double waited_s = 0; (joined.descriptor_ = open_lock(path, O_RDWR)) < 0; waited_s += 0.1) {
    if (errno != ENOENT && errno != ESTALE) refuse("{}: {}", path.string(), std::strerror(errno));
    if (waited_s >= patience_s) {
      refuse(
          "host {} sees no {}, which the first rank has made: run_dir has to be in a file system that all hosts share",
          host_name(), path.string());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (set_lock(joined.descriptor_, F_RDLCK, other_processes, path) == Answer::taken)
    refuse_taken(folder, joined.descriptor_);
  return joined;
}

void FolderLock::check_free(const fs::path& folder) {
  const int descriptor = open_lock(folder / "lock", O_RDONLY);
  if (descriptor < 0) return;  // nobody has ever taken it
  try {
    if (is_locked(descriptor, whole_job)) refuse_taken(folder, descriptor);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  ::close(descriptor);
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : folder_(std::move(other.folder_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      first_(other.first_),
      made_(std::exchange(other.made_, Made::nothing)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(folder_, other.folder_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(first_, other.first_);
  std::swap(made_, other.made_);
  return *this;
}

FolderLock::~FolderLock() {
  if (descriptor_ < 0) return;
  if (first_ && made_ != Made::nothing) {
    ::unlink((folder_ / "lock").c_str());
    if (made_ == Made::folder) ::rmdir(folder_.c_str());  // an empty one alone goes
  } else if (first_) {
    (void)!::ftruncate(descriptor_, 0);  // the note speaks of whoever has the folder
  }
  ::close(descriptor_);
}

}  // namespace trireme
