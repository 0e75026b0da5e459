// Segments: their names and owners, what is not believed to be one, and what is swept away.
#include "trireme/base/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "trireme/base/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr uid_t nobody = 65534;

std::string error_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of_open(const SegmentName& name, size_t bytes = 0) {
  return error_of([&] { Segment::open(name, bytes); });
}

// Runs `body` in another process, which ends with what it returns; that status, or 128 + the signal that ended it.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_listed(const SegmentName& name) {
  const auto names = Segment::living();
  return std::any_of(names.begin(), names.end(), [&](const auto& one) { return one.text() == name.text(); });
}

// A name with whatever lies there, which goes with the test.
class SegmentTest : public testing::Test {
 protected:
  ~SegmentTest() override { fs::remove(path_); }

  void put(size_t bytes, mode_t mode) {
    std::ofstream(path_) << std::string(bytes, 'x');
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }

  const SegmentName name_ = SegmentName::random();
  const fs::path path_ = name_.path();
};

TEST(SegmentName, IsNeverTheSame) {
  std::set<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.insert(SegmentName::random().text());
  EXPECT_EQ(texts.size(), 1000U);
  EXPECT_FALSE(SegmentName().is_set());
  EXPECT_TRUE(SegmentName::random().is_set());
}

TEST(SegmentName, IsReadFromItsText) {
  const SegmentName name{{0x0123456789abcdef, 0xfedcba9876543210}};
  EXPECT_EQ(name.text(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(SegmentName::parse(name.text(), "it").text(), name.text());
  EXPECT_EQ(fs::path(name.path()).filename(), "trireme-" + name.text());
  for (const auto* wrong : {"", "1", "/etc/passwd", "../../../../etc/passwd000000000000",
                            "0123456789ABCDEFfedcba9876543210", "0123456789abcdeffedcba98765432100"}) {
    EXPECT_THAT(error_of([&] { SegmentName::parse(wrong, "the environment variable NAME"); }),
                AllOf(HasSubstr("the environment variable NAME is"), HasSubstr("which is no name of shared memory")));
  }
}

TEST_F(SegmentTest, WhatOneWritesTheOtherReads) {
  auto made = Segment::create(10'000);
  EXPECT_EQ(std::count(made.data(), made.data() + made.bytes(), std::byte{0}), 10'000);
  auto opened = Segment::open(made.name(), 10'000);
  EXPECT_EQ(Segment::open(made.name()).bytes(), 10'000U);
  std::strcpy(reinterpret_cast<char*>(made.data()), "hello");
  EXPECT_STREQ(reinterpret_cast<char*>(opened.data()), "hello");
}

TEST_F(SegmentTest, BelongsToItsUserAlone) {
  const auto made = Segment::create(100);
  struct stat status{};
  ASSERT_EQ(::stat(made.name().path().c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, geteuid());
  EXPECT_EQ(status.st_mode, static_cast<mode_t>(S_IFREG | 0600));
}

TEST_F(SegmentTest, LosesItsNameWhenItIsHiddenOrEnds) {
  auto made = Segment::create(100);
  auto opened = Segment::open(made.name());
  made.hide();
  EXPECT_FALSE(fs::exists(made.name().path()));
  made.data()[7] = std::byte{7};
  EXPECT_EQ(opened.data()[7], std::byte{7}) << "memory outlives its name";
  fs::path path;
  {
    const auto other = Segment::create(100);
    path = other.name().path();
    {
      const auto reader = Segment::open(other.name());
    }
    EXPECT_TRUE(fs::exists(path)) << "who only reads leaves the name alone";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(SegmentTest, TooMuchIsAnErrorThatLeavesNothing) {
  const auto names = [] {
    std::set<fs::path> all;
    for (const auto& name : Segment::living()) all.insert(name.path());
    return all;
  };
  const auto before = names();
  EXPECT_THAT(error_of([] { Segment::create(size_t{1} << 50); }), HasSubstr("of shared memory left for"));
  EXPECT_EQ(names(), before);
}

TEST_F(SegmentTest, RefusesWhatIsNoneOfItsUsersSegments) {
  EXPECT_THAT(error_of_open(name_), AllOf(HasSubstr(path_), HasSubstr("No such file")));
  put(100, 0600);
  EXPECT_EQ(error_of_open(name_, 100), "no error");
  EXPECT_THAT(error_of_open(name_, 99), AllOf(HasSubstr(path_), HasSubstr("has 100 bytes instead of 99")));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    EXPECT_THAT(error_of_open(name_), AllOf(HasSubstr(path_), HasSubstr("is open to other users (mode 06")));
  }
  put(0, 0600);
  EXPECT_THAT(error_of_open(name_), HasSubstr("is empty"));
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(error_of_open(name_), HasSubstr("is no plain file"));
}

TEST_F(SegmentTest, FollowsNoLink) {
  const auto made = Segment::create(100);
  fs::create_symlink(made.name().path(), path_);
  EXPECT_THAT(error_of_open(name_), AllOf(HasSubstr(path_), HasSubstr("symbolic links")));
}

TEST_F(SegmentTest, AnotherUserCannotOpenIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto made = Segment::create(100);
  const int status = in_child([&] {
    if (setgid(nobody) != 0 || setuid(nobody) != 0) return 99;
    const auto path = made.name().path();
    const bool opened =
        std::ifstream(path).good() || ::unlink(path.c_str()) == 0 || ::rename(path.c_str(), "/dev/shm/x") == 0;
    return opened || error_of_open(made.name()).find("Permission denied") == std::string::npos ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(SegmentTest, WhatAnotherUserMadeIsNotOpenedListedOrSwept) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  put(100, 0600);
  ASSERT_EQ(::chown(path_.c_str(), nobody, nobody), 0);
  EXPECT_THAT(error_of_open(name_, 100), AllOf(HasSubstr(path_), HasSubstr("belongs to user 65534 instead of 0")));
  Segment::sweep();
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_FALSE(is_listed(name_));
}

TEST_F(SegmentTest, OnesWhoseMakersLiveAreListedAndNotSwept) {
  const auto made = Segment::create(100);
  EXPECT_TRUE(is_listed(made.name()));
  // Also in the eyes of another process.
  EXPECT_EQ(in_child([&] {
              Segment::sweep();
              return is_listed(made.name()) ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(fs::exists(made.name().path()));
}

TEST_F(SegmentTest, WhatAKilledProcessLeftIsSwept) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int status = in_child([&] {
    const auto made = Segment::create(100);
    if (::write(ends[1], &made.name(), sizeof(SegmentName)) != sizeof(SegmentName)) return 1;
    return ::kill(getpid(), SIGKILL);
  });
  ASSERT_EQ(status, 128 + SIGKILL);
  SegmentName name;
  ASSERT_EQ(::read(ends[0], &name, sizeof name), static_cast<ssize_t>(sizeof name));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(is_listed(name));
  Segment::sweep();
  EXPECT_FALSE(fs::exists(name.path()));
}

TEST_F(SegmentTest, OnlySegmentsAreSwept) {
  const auto folder = path_.parent_path();
  const fs::path other = folder / ("trireme-" + name_.text() + ".x"), older = folder / "trireme-0-pid1";
  for (const auto& path : {other, older}) std::ofstream(path) << "x";
  fs::create_directory(path_);
  Segment::sweep();
  for (const auto& path : {other, older, path_}) {
    EXPECT_TRUE(fs::exists(path)) << path;
    fs::remove(path);
  }
}

}  // namespace
}  // namespace trireme
