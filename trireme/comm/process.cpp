#include "trireme/comm/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>

#include "trireme/base/error.h"

namespace trireme {

pid_t start_process(ProcessOptions options) {
  std::vector<char*> arguments;
  for (auto& word : options.words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int output = -1;
  if (!options.output.empty()) {
    output = ::open(options.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output < 0) fail_errno(options.output.string());
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail_errno("fork");
  if (pid > 0) {
    if (output >= 0) ::close(output);
    return pid;
  }
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "error: cannot start %s: %s\n", arguments[0], std::strerror(errno));
  _exit(127);
}

std::string output_of(const std::vector<std::string>& words, int& status) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int problem = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string output;
  char buffer[4096];
  while (problem == 0) {
    const ssize_t count = read(ends[0], buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    output.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  if (problem != 0) fail("cannot start {}: {}", words[0], std::strerror(problem));
  int ended = 0;
  while (waitpid(pid, &ended, 0) < 0) {
    if (errno != EINTR) fail_errno("waiting for " + words[0]);
  }
  status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  return output;
}

bool has_environment(pid_t process, const std::string& name, const std::string& value) {
  std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry == name + "=" + value) return true;
  }
  return false;
}

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

namespace {

// As /proc says it: R, S, D, T (stopped), Z (ended); a space where there is no such process.
char state_of(pid_t pid) {
  std::ifstream stream(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(stream, line);
  const auto name_end = line.rfind(") ");
  return name_end == std::string::npos || name_end + 2 >= line.size() ? ' ' : line[name_end + 2];
}

bool still_runs(pid_t pid) {
  const char state = state_of(pid);
  return state != 'T' && state != 'Z' && state != ' ';
}

}  // namespace

bool is_stopped(pid_t pid) { return state_of(pid) == 'T'; }

double suspend_together(const std::vector<pid_t>& processes, double patience_s) {
  const int patience_ms = static_cast<int>(1000 * patience_s);
  for (const pid_t pid : processes) ::kill(pid, SIGTSTP);
  // Those that have processes of their own stop these first. Who continued one before it has stopped would lose it.
  int waited_ms = 0;
  for (const pid_t pid : processes) {
    for (; still_runs(pid) && waited_ms < patience_ms; ++waited_ms) usleep(1000);
    ::kill(pid, SIGSTOP);
  }
  timespec before{}, after{};
  clock_gettime(CLOCK_MONOTONIC, &before);
  ::raise(SIGSTOP);
  clock_gettime(CLOCK_MONOTONIC, &after);
  for (const pid_t pid : processes) ::kill(pid, SIGCONT);
  return static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
}

Signals::Signals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD}) {
    struct sigaction before{};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN || signal == SIGCHLD) sigaddset(&watched, signal);
  }
  sigprocmask(SIG_BLOCK, &watched, nullptr);
  descriptor_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) fail_errno("signalfd");
}

Signals::~Signals() { ::close(descriptor_); }

void Signals::wait(const std::function<void(int signal)>& asked,
                   const std::function<void(pid_t, int status)>& ended) const {
  pollfd one{descriptor_, POLLIN, 0};
  poll(&one, 1, 500);
  signalfd_siginfo info{};
  while (read(descriptor_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) asked(static_cast<int>(info.ssi_signo));
  }
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) ended(pid, status);
}

}  // namespace trireme
