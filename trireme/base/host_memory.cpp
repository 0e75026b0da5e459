#include "trireme/base/host_memory.h"

#include <algorithm>
#include <cstdint>
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

struct Installed {
  int64_t memory = 0, swap = 0;
};

// Of /proc/meminfo, whose lines are "MemTotal:  24689668 kB".
Installed installed(const fs::path& file) {
  std::ifstream stream(file);
  Installed found;
  int64_t kilobytes = 0;
  for (std::string name, unit; stream >> name >> kilobytes; std::getline(stream, unit)) {
    if (name == "MemTotal:") found.memory = kilobytes * 1024;
    if (name == "SwapTotal:") found.swap = kilobytes * 1024;
  }
  if (found.memory == 0) fail("{} does not say how much memory this host has", file.string());
  return found;
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

// The bytes that a group's processes may have, in memory and in swap. Its bounds are apart in version 2; version 1
// bounds the sum too, where the kernel counts swap.
std::optional<int64_t> limit_of(const fs::path& group, int64_t swap) {
  if (const auto memory = number_in(group / "memory.max"))
    return std::min(*memory, INT64_MAX - swap) + std::min(swap, number_in(group / "memory.swap.max").value_or(swap));
  const auto memory = number_in(group / "memory.limit_in_bytes"), sum = number_in(group / "memory.memsw.limit_in_bytes");
  if (!memory) return sum;
  return std::min(std::min(*memory, INT64_MAX - swap) + swap, sum.value_or(INT64_MAX));
}

// Every group is also bound by those that it lies in.
void take_least(HostMemory& least, const fs::path& tree, fs::path group, int64_t swap) {
  for (;; group = group.parent_path()) {
    const auto bytes = limit_of(tree / group.relative_path(), swap);
    if (bytes && *bytes > 0 && *bytes < least.bytes) least = {*bytes, "the cgroup " + group.string()};
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

HostMemory host_memory_limit(const fs::path& root) {
  const auto [memory, swap] = installed(root / "proc/meminfo");
  HostMemory least{memory + swap, "this host"};
  take_least(least, root / "sys/fs/cgroup", own_group(root, ""), swap);
  take_least(least, root / "sys/fs/cgroup/memory", own_group(root, "memory"), swap);
  return least;
}

}  // namespace trireme
