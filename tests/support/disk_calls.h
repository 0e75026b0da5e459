// Counts what a program really does to make files durable: fsync, fdatasync and rename of this program, also from
// inside libraries, pass through here on their way to the system. For one source file of a test program.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {

struct DiskCall {
  enum class Kind { sync, rename };
  Kind kind;
  std::filesystem::path path, to;  // what was synced, or the names before and after
  uint64_t bytes = 0;              // of a file at that moment
  std::vector<std::string> names;  // in a folder at that moment, sorted

  bool operator==(const DiskCall& other) const { return kind == other.kind && path == other.path && to == other.to; }
};

inline DiskCall synced(const std::filesystem::path& path) { return {DiskCall::Kind::sync, path, {}, 0, {}}; }
inline DiskCall renamed(const std::filesystem::path& from, const std::filesystem::path& to) {
  return {DiskCall::Kind::rename, from, to, 0, {}};
}
inline void PrintTo(const DiskCall& call, std::ostream* out) {
  *out << (call.kind == DiskCall::Kind::sync ? "sync " : "rename ") << call.path.string() << " " << call.to.string();
}

// While it lives the calls are recorded, in their order.
class DiskCalls {
 public:
  DiskCalls() { current() = this; }
  ~DiskCalls() {
    std::lock_guard lock(mutex());
    current() = nullptr;
  }
  DiskCalls(const DiskCalls&) = delete;
  DiskCalls& operator=(const DiskCalls&) = delete;

  std::vector<DiskCall> all() const {
    std::lock_guard lock(mutex());
    return calls_;
  }

  static void record(DiskCall call) {
    std::lock_guard lock(mutex());
    if (!current()) return;
    std::error_code ignored;
    if (std::filesystem::is_directory(call.path, ignored)) {
      for (const auto& entry : std::filesystem::directory_iterator(call.path, ignored))
        call.names.push_back(entry.path().filename().string());
      std::sort(call.names.begin(), call.names.end());
    } else {
      call.bytes = std::filesystem::file_size(call.path, ignored);
    }
    current()->calls_.push_back(std::move(call));
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static DiskCalls*& current() {
    static DiskCalls* one = nullptr;
    return one;
  }

  std::vector<DiskCall> calls_;
};

inline void record_sync(int descriptor) {
  std::error_code ignored;
  DiskCalls::record(synced(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored)));
}

}  // namespace trireme

extern "C" {

int fsync(int descriptor) {
  trireme::record_sync(descriptor);
  static const auto system_call = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  return system_call(descriptor);
}

int fdatasync(int descriptor) {
  trireme::record_sync(descriptor);
  static const auto system_call = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fdatasync"));
  return system_call(descriptor);
}

int rename(const char* from, const char* to) noexcept {
  trireme::DiskCalls::record(trireme::renamed(from, to));
  static const auto system_call = reinterpret_cast<int (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "rename"));
  return system_call(from, to);
}

}  // extern "C"
