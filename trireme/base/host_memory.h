// The memory that processes of this host may use in all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

struct HostMemory {
  int64_t bytes = 0;   // the host's memory and swap, or what this process's cgroup allows, if that is less
  std::string source;  // "this host" or "the cgroup /job_7"
};

// `root` is where the kernel's files lie, for tests.
HostMemory host_memory_limit(const std::filesystem::path& root = "/");

}  // namespace trireme
