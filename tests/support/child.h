// For tests of what happens between processes: a test program starts itself again in a role, a function that runs
// instead of the tests, and looks at how the child ends and what it says.
//
//   const Role greeter("greeter", [] { fmt::print(stderr, "hello {}", given("NAME")); return 3; });
//   Child child("greeter", {{"NAME", "you"}});
//   EXPECT_EQ(child.wait(), 3);
//   EXPECT_EQ(child.errors(), "hello you");
//   int main(int argc, char** argv) { return trireme::main_with_roles(argc, argv); }
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

struct Role {
  using Body = int (*)();
  Role(const char* name, Body body) { all()[name] = body; }
  static std::map<std::string, Body>& all() {
    static std::map<std::string, Body> roles;
    return roles;
  }
};

// What the parent gave the role.
inline std::string given(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

class Child {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit Child(const std::string& role, const Environment& extra = {})
      : output_(memfd_create("output", MFD_CLOEXEC)) {
    std::vector<std::string> words;
    for (char** entry = environ; *entry; ++entry) words.emplace_back(*entry);
    words.push_back("TRIREME_TEST_ROLE=" + role);
    for (const auto& [name, value] : extra) words.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (auto& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    char* arguments[] = {program_invocation_name, nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output_, STDERR_FILENO);
    const int problem = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (problem != 0) pid_ = -1;
    EXPECT_EQ(problem, 0) << "posix_spawn";
  }
  ~Child() {
    if (pid_ > 0 && status_ < 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) { ::kill(pid_, number); }

  bool running() {
    int status = 0;
    if (status_ < 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return status_ < 0;
  }

  // Its exit status, 128 + n when signal n ended it. A child that has not ended after `limit_s` hangs: -1.
  int wait(double limit_s = 60) {
    for (double waited_s = 0; running() && waited_s < limit_s; waited_s += 0.005) ::usleep(5000);
    return status_;
  }

  // What it has written to standard error until now.
  std::string errors() const {
    struct stat status{};
    ::fstat(output_, &status);
    std::string text(static_cast<size_t>(status.st_size), '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::pread(output_, text.data(), text.size(), 0))));
    return text;
  }

 private:
  int output_;
  pid_t pid_ = -1;
  int status_ = -1;
};

inline int main_with_roles(int argc, char** argv) {
  const auto role = given("TRIREME_TEST_ROLE");
  if (role.empty()) {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    return Role::all().at(role)();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "role %s: %s\n", role.c_str(), error.what());
    return 1;
  }
}

}  // namespace trireme
