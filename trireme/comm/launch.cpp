#include "trireme/comm/launch.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stop_wishes.h"
#include "trireme/base/words.h"
#include "trireme/comm/core_sharing.h"
#include "trireme/comm/process.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr const char* board_variable = "TRIREME_BOARD";  // by which ranks know the board's name
constexpr int64_t second_ns = 1'000'000'000;
constexpr int64_t patience_ns = 8 * second_ns;  // from a fault to SIGKILL: ranks end by themselves long before

// Whether a process that the board names is a rank of this job: one that was started with the board's name, which no
// other process knows. The number on the board may be wrong, or by now another process's.
bool is_rank(const Board& board, pid_t process) {
  return process > 0 && has_environment(process, board_variable, board.name().text());
}

void kill_rank(const Board& board, pid_t process) {
  if (process <= 0) return;
  // Held by its descriptor, the process cannot become another one before it is killed.
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (descriptor < 0) return;
  if (is_rank(board, process)) syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, nullptr, 0);
  ::close(descriptor);
}

struct Job {
  std::shared_ptr<Board> board;
  std::map<pid_t, int> running;  // process -> rank (-1: mpirun, which holds them all)
  int stop_signal = 0;
  StopWishes wishes;
  bool stopped_twice = false;
  int exit_status = 0;
  int64_t kill_at_ns = 0;
  bool logs = false;  // what is said here stands in the run's log.txt
  std::string advice;

  // mpirun does not take its ranks along: they are on the board.
  void kill_all() {
    for (const auto& [pid, rank] : running) ::kill(pid, SIGKILL);
    for (int i = 0; i < board->ranks(); ++i) kill_rank(*board, board->slot(i).pid.load());
  }

  // Of mpirun's ranks those that are on the board; mpirun itself only waits for them.
  std::vector<pid_t> ranks_here() const {
    std::set<pid_t> found;
    for (const auto& [pid, rank] : running) {
      if (rank >= 0) found.insert(pid);
    }
    for (int i = 0; i < board->ranks(); ++i) {
      if (const int pid = board->slot(i).pid.load(); is_rank(*board, pid)) found.insert(pid);
    }
    return {found.begin(), found.end()};
  }
};

std::vector<std::string> mpirun_command(const LaunchOptions& options, const std::string& program) {
  // Its own messages are hidden (-q): ours say more. When a rank dies, or this launcher, mpirun waits for as many
  // seconds as are given here, sends the others SIGTERM, and waits for as many again before SIGKILL; it hears nothing
  // meanwhile.
  std::vector<std::string> words{"mpirun",
                                 "-q",
                                 "--oversubscribe",
                                 "--bind-to",
                                 options.bind_to,
                                 "--mca",
                                 "odls_base_sigkill_timeout",
                                 "3",
                                 "-np",
                                 std::to_string(options.ranks)};
  for (const char* name :
       {board_variable, "TRIREME_TERMINAL", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    words.push_back("-x");
    words.push_back(name);
  }
  words.push_back(program);
  return words;
}

void start_ranks(Job& job, const LaunchOptions& options) {
  const auto program = own_program();
  std::vector<std::pair<std::string, std::string>> extra{{board_variable, job.board->name().text()},
                                                         {"OMP_NUM_THREADS", std::to_string(options.threads_per_rank)}};
  for (auto& variable : waiting_environment()) extra.push_back(std::move(variable));
  if (options.mpirun) {
    if (isatty(STDERR_FILENO))
      extra.push_back({"TRIREME_TERMINAL", "1"});
    else
      extra.push_back({"TRIREME_TERMINAL", ""});
    if (geteuid() == 0) {
      extra.push_back({"OMPI_ALLOW_RUN_AS_ROOT", "1"});
      extra.push_back({"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"});
    }
    auto words = mpirun_command(options, program);
    words.insert(words.end(), options.arguments.begin(), options.arguments.end());
    job.running[start_process({words, extra, {}})] = -1;
    return;
  }
  std::vector<std::string> words{program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  extra.push_back({"TRIREME_RANKS", std::to_string(options.ranks)});
  extra.push_back({"TRIREME_RANK", ""});
  for (int rank = 0; rank < options.ranks; ++rank) {
    extra.back().second = std::to_string(rank);
    job.running[start_process({words, extra, {}})] = rank;
  }
}

void pause(Job& job) {
  const double seconds = suspend_together(job.ranks_here());
  if (job.kill_at_ns != 0) job.kill_at_ns += static_cast<int64_t>(seconds * second_ns);
}

void ask_to_stop(Job& job, int signal) {
  if (signal == SIGTSTP) return pause(job);
  const int wish = job.wishes.count(signal);
  if (wish == 0) return;
  if (wish > 1) {
    log::warn("asked to stop again: leaving at once, without saving");
    job.stopped_twice = true;
    job.kill_all();
    return;
  }
  job.stop_signal = signal;
  job.board->request_stop(signal);
  log::info("{}: ending this step and saving a checkpoint (again: leave at once)",
            signal == SIGINT ? "ctrl-C" : "asked to stop");
}

// A process of the job ended. Unless it ended well, or some rank has already said why the job ends, say so here.
void ended(Job& job, pid_t pid, int status) {
  const int rank = job.running.at(pid);
  job.running.erase(pid);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0) {
    if (const int stop = job.board->stop_requested(); rank < 0 && stop != 0) job.exit_status = 128 + stop;
    return;
  }
  if (job.stopped_twice) {
    job.exit_status = 128 + job.stop_signal;
    return;
  }
  if (const int stop = job.board->stop_requested(); stop != 0 && code == 128 + stop) {
    job.exit_status = code;
    return;
  }
  if (rank >= 0) {
    const auto& slot = job.board->slot(rank);
    const auto how = WIFSIGNALED(status)
                         ? fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                         : fmt::format("ended with status {}", code);
    const auto message =
        fmt::format("rank {} (process {}) {}; its last operation: {}", rank, pid, how, slot.last_operation());
    if (job.board->claim_fault(rank, WIFSIGNALED(status) ? 1 : code, message)) {
      log::error("{}. The job ends{}", message, job.advice);
    }
  }
  if (rank < 0 && !job.board->faulted()) {
    // Nobody was left, or had come far enough, to say which rank it was; mpirun hands on the status of the first.
    const auto why = code > 128 ? fmt::format("a rank was killed by signal {} ({})", code - 128, strsignal(code - 128))
                                : "a rank failed";
    log::error("mpirun ended with status {}: {} before the ranks had met", code, why);
  }
  job.exit_status = job.board->faulted() ? job.board->fault_exit_status() : code > 128 ? 1 : code;
  if (job.kill_at_ns == 0) job.kill_at_ns = monotonic_ns() + patience_ns;
}

// Some rank has said why the job ends, and the others leave by themselves: all but one that is stopped, and those that
// have not met yet and wait for the dead one; these have nothing to save.
void help_to_end(Job& job) {
  if (job.kill_at_ns == 0) job.kill_at_ns = monotonic_ns() + patience_ns;
  for (int i = 0; i < job.board->ranks(); ++i) {
    if (const int pid = job.board->slot(i).pid.load(); is_stopped(pid)) kill_rank(*job.board, pid);
  }
  for (const auto& [pid, rank] : job.running) {
    if (rank >= 0 && job.board->slot(rank).state.load() == RankState::absent) ::kill(pid, SIGKILL);
  }
}

// As soon as the first rank has said where it is.
void join_log(Job& job) {
  if (job.logs) return;
  const auto path = job.board->announced_log();
  if (path.empty()) return;
  log::set_file(path);
  job.logs = true;
}

}  // namespace

int launch(const LaunchOptions& options) {
  Segment::sweep();
  Job job;
  job.advice = options.advice;
  job.board = Board::create(options.ranks);

  const Signals signals;
  start_ranks(job, options);
  while (!job.running.empty()) {
    join_log(job);
    signals.wait([&](int signal) { ask_to_stop(job, signal); },
                 [&](pid_t pid, int status) {
                   if (job.running.count(pid)) ended(job, pid, status);
                 });
    if (job.board->faulted()) help_to_end(job);
    if (job.kill_at_ns != 0 && monotonic_ns() > job.kill_at_ns) {
      log::warn("{} did not end by themselves: killed", counted(std::ssize(job.running), "process", "processes"));
      job.kill_all();
      job.kill_at_ns = monotonic_ns() + patience_ns;
    }
  }
  join_log(job);
  Segment::sweep();  // what ranks that were killed were about to share
  return job.exit_status;
}

}  // namespace trireme
