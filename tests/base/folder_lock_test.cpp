#include "trireme/base/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "tests/data/temporary.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A process that does something and then stays, until it is killed.
class Other {
 public:
  explicit Other(const std::function<void()>& action) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        action();
        (void)!::write(ready[1], "+", 1);
        while (true) ::pause();
      } catch (const Error& error) {
        ::fprintf(stderr, "other process: %s\n", error.what());
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char letter = 0;
    EXPECT_EQ(::read(ready[0], &letter, 1), 1) << "the other process could not do it";
    ::close(ready[0]);
  }
  ~Other() { kill(); }

  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

class FolderLockTest : public testing::Test {
 protected:
  FolderLockTest() {
    auto name = process_folder() + "trireme-lock-XXXXXX";
    above_ = ::mkdtemp(name.data());
    folder_ = above_ / "run";
  }
  ~FolderLockTest() override { fs::remove_all(above_); }

  std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_status(), 2) << error.what();
      return error.what();
    }
    return "";
  }
  std::string refusal() {
    return refusal([&] { FolderLock::take(folder_); });
  }
  std::string note() const {
    std::ifstream file(folder_ / "lock");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path above_, folder_;
};

TEST_F(FolderLockTest, ASecondProcessIsRefusedUntilTheFirstIsDead) {
  Other first([&] { new FolderLock(FolderLock::take(folder_)); });
  const auto named = AllOf(HasSubstr(folder_.string() + " is in use by process " + std::to_string(first.pid())),
                           HasSubstr("on host " + host_name() + ", since 20"));
  EXPECT_THAT(refusal(), named);
  EXPECT_THAT(refusal([&] { FolderLock::check_free(folder_); }), named);
  first.kill();
  EXPECT_EQ(refusal([&] { FolderLock::check_free(folder_); }), "");
  const auto mine = FolderLock::take(folder_);
  EXPECT_THAT(note(), HasSubstr("process " + std::to_string(::getpid())));
}

TEST_F(FolderLockTest, TwoOfOneProcessKeepEachOtherOut) {
  {
    auto mine = FolderLock::take(folder_);
    mine.keep();
    EXPECT_THAT(refusal(), HasSubstr("is in use by process " + std::to_string(::getpid())));
  }
  EXPECT_EQ(note(), "");  // nobody has it
  EXPECT_EQ(refusal(), "");
}

// Locks of the older kind (F_SETLK) end when the process closes any descriptor of the file.
TEST_F(FolderLockTest, IsNotLostByReadingItsFile) {
  Other first([&] {
    new FolderLock(FolderLock::take(folder_));
    std::ifstream(folder_ / "lock").get();
    File(folder_ / "lock", File::Mode::append);
  });
  EXPECT_THAT(refusal(), HasSubstr("is in use by"));
}

// A program that the job starts does not hold what the job held.
TEST_F(FolderLockTest, IsNotInheritedByPrograms) {
  pid_t started = -1;
  {
    auto mine = FolderLock::take(folder_);
    mine.keep();
    started = ::fork();
    if (started == 0) {
      ::execlp("sleep", "sleep", "60", nullptr);
      ::_exit(127);
    }
    // It has become the other program when its command line is that one's.
    const auto command = fs::path("/proc") / std::to_string(started) / "comm";
    for (std::string name; name != "sleep"; ::usleep(1000)) std::getline(std::ifstream(command) >> std::ws, name);
  }
  EXPECT_EQ(refusal(), "");
  ::kill(started, SIGKILL);
  ::waitpid(started, nullptr, 0);
}

// The first process is dead, but another rank of its job may still be writing.
TEST_F(FolderLockTest, IsFreeWhenTheLastRankIsGone) {
  Other first([&] { (new FolderLock(FolderLock::take(folder_)))->keep(); });
  Other second([&] { new FolderLock(FolderLock::join(folder_)); });
  EXPECT_THAT(refusal(), HasSubstr("is in use by process " + std::to_string(first.pid())));
  const auto first_pid = first.pid();
  first.kill();
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("is still in use by other ranks of the job of process " + std::to_string(first_pid)),
                    HasSubstr("try again")));
  second.kill();
  EXPECT_EQ(refusal(), "");
}

TEST_F(FolderLockTest, ARankThatSeesAnotherFolderIsRefused) {
  EXPECT_THAT(refusal([&] { FolderLock::join(folder_, 0); }),
              AllOf(HasSubstr("host " + host_name() + " sees no " + (folder_ / "lock").string()),
                    HasSubstr("run_dir has to be in a file system that all hosts share")));
}

TEST_F(FolderLockTest, LeavesNothingBehindUnlessItIsKept) {
  {
    const auto mine = FolderLock::take(folder_ / "");
    EXPECT_TRUE(fs::exists(folder_ / "lock"));
  }
  EXPECT_FALSE(fs::exists(folder_));
  fs::create_directory(folder_);
  {
    const auto mine = FolderLock::take(folder_);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  {
    FolderLock::take(folder_).keep();
  }
  EXPECT_TRUE(fs::exists(folder_ / "lock"));
  {
    const auto mine = FolderLock::take(folder_);
  }
  EXPECT_TRUE(fs::exists(folder_ / "lock")) << "it was another run's";
}

TEST_F(FolderLockTest, ARefusedRunLeavesTheLockOfTheOther) {
  const auto mine = FolderLock::take(folder_);
  EXPECT_NE(refusal(), "");
  EXPECT_NE(refusal(), "");
  EXPECT_TRUE(fs::exists(folder_ / "lock"));
}

TEST_F(FolderLockTest, ANewFolderIsTakenByOne) {
  const auto first = FolderLock::take_new(folder_);
  EXPECT_TRUE(first.has_value());
  EXPECT_FALSE(FolderLock::take_new(folder_).has_value());
}

TEST_F(FolderLockTest, RefusesWhatCannotBeAFolder) {
  std::ofstream(above_ / "file") << "text";
  EXPECT_THAT(refusal([&] { FolderLock::take(above_ / "file"); }), HasSubstr((above_ / "file").string()));
  EXPECT_THAT(refusal([&] { FolderLock::take(above_ / "file/run"); }), HasSubstr("cannot make the folder"));
}

// A run that was refused takes its folder away again, and a second one may be about to take it.
TEST_F(FolderLockTest, IsTakenThoughTheFolderVanishesMeanwhile) {
  const auto folder = above_ / "vanishing";
  const std::jthread other([&](const std::stop_token& ended) {
    while (!ended.stop_requested()) {
      ::rmdir(folder.c_str());
      std::this_thread::yield();  // or nobody else has a turn on one core
    }
  });
  for (int tries = 0; tries < 300; ++tries) {
    auto taken = FolderLock::take(folder);
    taken.keep();
    EXPECT_TRUE(fs::exists(folder / "lock"));
    fs::remove(folder / "lock");
  }
}

}  // namespace
}  // namespace trireme
