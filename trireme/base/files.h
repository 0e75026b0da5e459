// Files that survive crashes and say what went wrong. Every error names the path; nothing is half-read or half-written
// in silence; what must outlive a power cut is synced, then renamed into place.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// An open file. Interrupted and partial transfers are continued until all bytes have moved.
class File {
 public:
  enum class Mode {
    read,    // must exist
    create,  // new or emptied
    append,  // new or kept; every write lands at the end
  };

  File(std::filesystem::path path, Mode mode);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  void write_all(std::span<const std::byte> bytes);
  void pread_all(std::span<std::byte> out, uint64_t offset) const;  // a file that ends too early is an error
  void sync();                                                      // returns when the disk has the bytes
  uint64_t size() const;

  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A whole file as read-only memory; pages are read from disk when touched. The file must not shrink meanwhile:
// touching a page that is gone ends the program (SIGBUS).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // refuses a file that is missing, empty or not a plain file
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// After a crash at any moment `path` holds either what it held before or all of `bytes`.
void write_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);
inline void write_atomically(const std::filesystem::path& path, std::string_view text) {
  write_atomically(path, bytes_of(text));
}

// Makes a folder and those above it, where they are not there yet.
void make_folder(const std::filesystem::path& path);

// A folder that is held open, by which it is known again whatever name it gets.
class HeldFolder {
 public:
  explicit HeldFolder(const std::filesystem::path& path);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

  // Whether the name stands for this folder.
  bool is_at(const std::filesystem::path& path) const;

 private:
  int descriptor_;
};

// Removes a file, or a folder with all that is in it, as far as it can; nothing there is fine. (Not fs::remove_all: the
// CUDA builds of torch export an older one that crashes, and it comes before the right one.)
void remove_tree(const std::filesystem::path& path);

// Makes durable which names the folder holds. The files' own bytes are File::sync()'s matter.
void sync_folder(const std::filesystem::path& path);

// Renames a file or folder, replacing a file or an empty folder, and returns when the new name would survive a crash.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

// XXH3, 64 bits: finds damage at memory speed, does not withstand malice.
uint64_t checksum(std::span<const std::byte> bytes);

// The same value for bytes that come in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&& other) noexcept;
  Checksum& operator=(Checksum&& other) noexcept;

  void update(std::span<const std::byte> bytes);
  uint64_t value() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex(uint64_t value);  // always 16 digits: "2d06800538d394c2"

// Slows writers down to a given pace, so that a save in the background leaves the disk to others. Threads may share
// one limit. Time lost to writing or oversleeping is made up for, but never more than a tenth of a second of it.
class RateLimit {
 public:
  explicit RateLimit(uint64_t bytes_per_second);  // 0: no limit

  void take(uint64_t bytes);  // returns when these bytes may go

 private:
  using Clock = std::chrono::steady_clock;

  uint64_t bytes_per_second_;
  std::mutex mutex_;
  Clock::time_point paid_until_;  // when everything taken so far has been paid for in time
};

}  // namespace trireme
