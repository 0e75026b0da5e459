// Notes to the person at the terminal: one line each on standard error, and in the run's log.txt once there is one.
// Rank 0 speaks; other ranks only warn, with their rank in front.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

namespace trireme::log {

enum class Level { info, warning, error };

// The rank of the calling thread (ranks may be threads of one process).
void set_rank(int rank);
int rank();

// From now on every line is also appended to this file; an empty path ends that.
void set_file(const std::filesystem::path& path);

// The progress line registers here how to clear itself, so that a note never lands in the middle of it.
void set_before_line(void (*clear)());

void write(Level level, const std::string& text);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace trireme::log
