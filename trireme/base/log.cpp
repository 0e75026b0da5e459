#include "trireme/base/log.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace trireme::log {
namespace {

thread_local int this_rank = 0;

struct Output {
  std::mutex mutex;
  std::FILE* file = nullptr;
  void (*before_line)() = nullptr;
};

// Never destroyed: threads may log while the process ends.
Output& output() {
  static Output* one = new Output;
  return *one;
}

}  // namespace

void set_rank(int rank) { this_rank = rank; }
int rank() { return this_rank; }

void set_file(const std::filesystem::path& path) {
  auto& out = output();
  std::lock_guard lock(out.mutex);
  if (out.file) std::fclose(out.file);
  out.file = path.empty() ? nullptr : std::fopen(path.c_str(), "a");
  if (!path.empty() && !out.file)
    std::fprintf(stderr, "warning: no log file: %s: %s\n", path.c_str(), std::strerror(errno));
}

void set_before_line(void (*clear)()) {
  auto& out = output();
  std::lock_guard lock(out.mutex);
  out.before_line = clear;
}

void write(Level level, const std::string& text) {
  if (level == Level::info && this_rank != 0) return;
  std::string line;
  if (level == Level::warning) line = "warning: ";
  if (level == Level::error) line = "error: ";
  if (this_rank != 0) line += fmt::format("rank {}: ", this_rank);
  line += text + "\n";

  auto& out = output();
  std::lock_guard lock(out.mutex);
  if (out.before_line) out.before_line();
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  if (out.file) {
    std::fputs(line.c_str(), out.file);
    std::fflush(out.file);
  }
}

}  // namespace trireme::log
