// Processes that this one starts and looks after. Each has a process group of its own, so that ctrl-C reaches whoever
// started it, who can ask it to save; and it gets a SIGTERM should the starter die.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct ProcessOptions {
  std::vector<std::string> words;                                // the command line
  std::vector<std::pair<std::string, std::string>> environment;  // set for it alone
  std::filesystem::path output;                                  // where both its outputs go; empty = where ours do
};

pid_t start_process(ProcessOptions options);

// Runs a command to its end and returns what it wrote to its standard output; `status` is its exit status, 128 + n when
// signal n ended it. No shell reads the words.
std::string output_of(const std::vector<std::string>& words, int& status);

// Whether a process of this user was started with this value of an environment variable.
bool has_environment(pid_t process, const std::string& name, const std::string& value);

// This program's own file.
std::string own_program();

// Whether a process is stopped, as by SIGSTOP or ctrl-Z.
bool is_stopped(pid_t pid);

// What ctrl-Z means for a program with processes in groups of their own, which the terminal does not reach: stops them,
// then this one, and lets all go on when this one is continued (fg). Returns after that, with the seconds in between.
// A process that has not stopped of itself within `patience_s` is stopped anyway.
double suspend_together(const std::vector<pid_t>& processes, double patience_s = 2);

// From now on signals that end or stop programs, and children's ends, are heard here and nowhere else, unless this
// program was started with a signal ignored (nohup). Make it before there are
// other threads, which would still hear them. It ends with the program: what comes after it finds a program that
// leaves.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits half a second at most. Calls `asked` with each signal that asks to end or to pause (SIGTSTP, see
  // suspend_together), then `ended` with each child that has ended and its status.
  void wait(const std::function<void(int signal)>& asked, const std::function<void(pid_t, int status)>& ended) const;

 private:
  int descriptor_ = -1;
};

}  // namespace trireme
