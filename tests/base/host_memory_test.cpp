#include "trireme/base/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;

// The kernel's files as a test writes them.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       24000 kB\nMemFree:        1000 kB\nSwapTotal:       1000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  const fs::path root_ = fs::path(process_folder()) / "host-memory";
};

TEST_F(HostMemoryTest, IsMemoryAndSwapWithoutLimits) {
  const auto found = host_memory_limit(root_);
  EXPECT_EQ(found.bytes, 25000 * 1024);
  EXPECT_EQ(found.source, "this host");
}

TEST_F(HostMemoryTest, IsTheLeastOfAllCgroupsAround) {
  write("proc/meminfo", "MemTotal:       25000 kB\nSwapTotal:          0 kB\n");
  write("proc/self/cgroup", "0::/jobs/7/step\n");
  write("sys/fs/cgroup/jobs/7/step/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/7/memory.max", "3000000\n");
  write("sys/fs/cgroup/jobs/memory.max", "9000000\n");
  write("sys/fs/cgroup/jobs/8/memory.max", "1000\n");
  auto found = host_memory_limit(root_);
  EXPECT_EQ(found.bytes, 3000000);
  EXPECT_EQ(found.source, "the cgroup /jobs/7");
  // In a container the root is its own group.
  write("sys/fs/cgroup/memory.max", "2000000\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 2000000);
  // A limit above what the host has is none.
  write("sys/fs/cgroup/memory.max", "900000000000\n");
  write("sys/fs/cgroup/jobs/7/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/memory.max", "max\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 25000 * 1024);
}

// A group that may use swap has so much more, but not more than the host has.
TEST_F(HostMemoryTest, CountsTheSwapOfACgroup) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "3000000\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 3000000 + 1000 * 1024);
  write("sys/fs/cgroup/job/memory.swap.max", "max\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 3000000 + 1000 * 1024);
  write("sys/fs/cgroup/job/memory.swap.max", "70000\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 3070000);
  write("sys/fs/cgroup/job/memory.swap.max", "0\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 3000000);
}

TEST_F(HostMemoryTest, CountsTheSwapOfACgroupOfTheFirstVersion) {
  write("proc/self/cgroup", "4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4000000\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 4000000 + 1000 * 1024);
  write("sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "4500000\n");
  EXPECT_EQ(host_memory_limit(root_).bytes, 4500000);
  write("sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(host_memory_limit(root_).bytes, 4000000 + 1000 * 1024);
}

TEST_F(HostMemoryTest, ReadsTheFirstVersionOfCgroupsToo) {
  write("proc/meminfo", "MemTotal:       25000 kB\nSwapTotal:          0 kB\n");
  write("proc/self/cgroup", "12:cpu,cpuacct:/other\n4:memory:/slurm/job_3\n");
  write("sys/fs/cgroup/memory/slurm/job_3/memory.limit_in_bytes", "4000000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto found = host_memory_limit(root_);
  EXPECT_EQ(found.bytes, 4000000);
  EXPECT_EQ(found.source, "the cgroup /slurm/job_3");
}

TEST_F(HostMemoryTest, FailsWhereTheKernelDoesNotSay) {
  write("proc/meminfo", "");
  EXPECT_THROW(host_memory_limit(root_), Error);
}

}  // namespace
}  // namespace trireme
