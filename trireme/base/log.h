// Notes to the person at the terminal: one line each on standard error, and with its time in the run's log.txt. Lines
// from before there is a log.txt are kept and stand there too. Rank 0 speaks; other ranks only warn, with their rank in
// front.
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

// From now on every line is also appended to this file, those that had none so far first; an empty path ends that. The
// file is made with its first line. Several processes of a host may write to one file.
void set_file(const std::filesystem::path& path);

// Lines for the file alone: what stands elsewhere for people, or is shown in another form.
void note(const std::string& text);

// The last line of a program that has a file: how it ends.
void end(int exit_status);

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
