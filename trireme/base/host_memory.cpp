#include "trireme/base/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "trireme/base/error.h"

namespace trireme {

namespace {

namespace fs = std::filesystem;

// A file that holds one number of bytes; none where it says "max" or is not there.
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  int64_t number = 0;
  if (stream >> number) return number;
  return {};
}

// Of /proc/meminfo, whose lines are "MemTotal:  24689668 kB".
int64_t memory_and_swap(const fs::path& file) {
  std::ifstream stream(file);
  int64_t bytes = 0, kilobytes = 0;
  for (std::string name, unit; stream >> name >> kilobytes; std::getline(stream, unit)) {
    if (name == "MemTotal:" || name == "SwapTotal:") bytes += kilobytes * 1024;
  }
  if (bytes == 0) fail("{} does not say how much memory this host has", file.string());
  return bytes;
}

// The groups that this process is in, as paths in the tree of cgroups: "/" where a container shows its own as the root.
fs::path own_group(const fs::path& root, const std::string& controller) {
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {
    // "0::/path" in version 2; "4:memory:/path" in version 1.
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "/";
}

// Every group is also bound by those that it lies in.
void take_least(HostMemory& least, const fs::path& tree, fs::path group, const char* limit) {
  for (;; group = group.parent_path()) {
    const auto bytes = number_in(tree / group.relative_path() / limit);
    if (bytes && *bytes > 0 && *bytes < least.bytes) least = {*bytes, "the cgroup " + group.string()};
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

HostMemory host_memory_limit(const fs::path& root) {
  HostMemory least{memory_and_swap(root / "proc/meminfo"), "this host"};
  take_least(least, root / "sys/fs/cgroup", own_group(root, ""), "memory.max");
  take_least(least, root / "sys/fs/cgroup/memory", own_group(root, "memory"), "memory.limit_in_bytes");
  return least;
}

}  // namespace trireme
