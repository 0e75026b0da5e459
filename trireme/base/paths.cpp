#include "trireme/base/paths.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/units.h"

namespace trireme {

namespace fs = std::filesystem;

namespace {

std::string home_of(const std::string& user) {
  if (const char* home = std::getenv("HOME"); user.empty() && home && *home) return home;
  const passwd* entry = user.empty() ? ::getpwuid(::getuid()) : ::getpwnam(user.c_str());
  return entry && entry->pw_dir ? entry->pw_dir : "";
}

// What stands where a plain file was expected.
const char* kind_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory: return "a folder";
    case fs::file_type::fifo: return "a pipe";
    case fs::file_type::socket: return "a socket";
    default: return "a device";
  }
}

fs::path folder_of(const fs::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace

fs::path expand_home(const fs::path& path) {
  const auto text = path.string();
  if (text.empty() || text.front() != '~') return path;
  const auto slash = std::min(text.find('/'), text.size());
  const auto user = text.substr(1, slash - 1);
  const auto home = home_of(user);
  if (home.empty() && user.empty()) refuse("{}: the home folder is not known: set HOME", text);
  if (home.empty()) refuse("{}: there is no user {} (write ./{} for a name that begins with ~)", text, user, text);
  return fs::path(home + text.substr(slash));
}

std::string dangling_link(const fs::path& path) {
  fs::path so_far;
  std::error_code error;
  for (const auto& part : path) {
    so_far /= part;
    if (!fs::is_symlink(so_far, error)) continue;
    const auto target = fs::read_symlink(so_far, error);
    if (error || fs::exists(so_far, error)) continue;
    return fmt::format("{} is a dangling link: it points to {}, which does not exist", so_far.string(),
                       target.string());
  }
  return "";
}

void refuse_missing(const fs::path& path, const std::string& what) {
  if (const auto link = dangling_link(path); !link.empty()) refuse("{}", link);
  refuse("{}: there is no such {}", path.string(), what);
}

void check_output_folder(const fs::path& path) {
  if (const auto link = dangling_link(path); !link.empty()) refuse("{}", link);
  fs::path there = path.has_filename() ? path : folder_of(path);
  while (!fs::exists(there)) there = folder_of(there);
  if (!fs::is_directory(there) && there == path) refuse("{} is no folder", path.string());
  if (!fs::is_directory(there)) refuse("{} cannot be made: {} is no folder", path.string(), there.string());
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    refuse("{} cannot be written: {}: {}", path.string(), there.string(), std::strerror(errno));
}

void check_new_folder(const fs::path& path) {
  check_output_folder(path);
  if (fs::exists(path) && !fs::is_empty(path)) refuse("{} exists already: name a folder that does not", path.string());
}

void prepare_output_file(const std::string& option, const fs::path& path) {
  try {
    if (fs::is_directory(path) || !path.has_filename()) refuse("{} is a folder: name a file", path.string());
    check_output_folder(folder_of(path));
    make_folder(folder_of(path));
  } catch (Error& error) {
    error.add_context(option);
    throw;
  }
}

std::string read_input_text(const fs::path& path, const std::string& what, uint64_t most_bytes) {
  std::error_code error;  // what the status cannot tell, opening will
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) refuse_missing(path, "file");
  if (fs::exists(status) && !fs::is_regular_file(status))
    refuse("{}: this is {}, not {}", path.string(), kind_of(status.type()), what);
  const File file(path, File::Mode::read);
  const auto bytes = file.size();
  if (bytes > most_bytes) {
    refuse("{}: this file of {} is not {}, which has {} at most", path.string(),
           human_bytes(static_cast<double>(bytes)), what, human_bytes(static_cast<double>(most_bytes)));
  }
  std::string text(bytes, '\0');
  file.pread_all(std::as_writable_bytes(std::span(text)), 0);
  if (const auto zero = text.find('\0'); zero != std::string::npos)
    refuse("{}: this file holds binary data (byte {} is 0) and is not {}", path.string(), zero, what);
  return text;
}

}  // namespace trireme
