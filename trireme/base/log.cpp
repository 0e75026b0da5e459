#include "trireme/base/log.h"

#include <cstdio>
#include <mutex>
#include <optional>
#include <algorithm>
#include <string_view>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"

namespace trireme::log {
namespace {

constexpr size_t most_early_lines = 1000;  // a program that never runs anything needs no more memory

thread_local int this_rank = 0;

struct Output {
  std::mutex mutex;
  std::filesystem::path path;
  std::optional<File> file;
  bool torn = false, warned = false;  // half a line stands in the file; somebody knows
  std::vector<std::string> early;     // said before there was a file
  void (*before_line)() = nullptr;

  void show(const std::string& lines) {
    if (before_line) before_line();
    std::fputs(lines.c_str(), stderr);
    std::fflush(stderr);
  }

  void append(const std::string& lines) {
    try {
      if (!file) file.emplace(path, File::Mode::append);
      const auto text = torn ? "\n" + lines : lines;
      torn = true;
      file->write_all(bytes_of(text));  // at once, so that lines of several processes do not mix
      torn = false;
    } catch (const Error& error) {
      if (!warned) show(fmt::format("warning: {}; what does not fit is missing in the log\n", error.what()));
      warned = true;
    }
  }

  void keep(const std::string& text) {
    std::string lines;
    const auto time = time_now();
    for (std::string_view rest = text; !rest.empty();) {
      const auto line = rest.substr(0, rest.find('\n'));
      lines += fmt::format("{}  {}\n", time, line);
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    }
    if (!path.empty()) {
      append(lines);
    } else if (early.size() < most_early_lines) {
      early.push_back(std::move(lines));
    }
  }
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
  out.file.reset();
  out.path = path;
  out.torn = out.warned = false;
  if (path.empty()) return;
  for (const auto& lines : out.early) out.append(lines);
  out.early.clear();
}

void note(const std::string& text) {
  auto& out = output();
  std::lock_guard lock(out.mutex);
  out.keep(text);
}

void end(int exit_status) {
  auto& out = output();
  {
    std::lock_guard lock(out.mutex);
    if (out.path.empty()) return;
    out.keep(fmt::format("ended with exit status {}", exit_status));
  }
  set_file({});
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
  out.show(line);
  out.keep(line);
}

}  // namespace trireme::log
