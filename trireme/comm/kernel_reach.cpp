#include "trireme/comm/kernel_reach.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/segment.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

// The kernel gives this number to the namespace in which all processes of a machine are.
constexpr uint64_t machine_pid_namespace = 0xEFFFFFFC;

// Yama's mode; empty where there is no Yama.
std::string ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string scope;
  file >> scope;
  return scope;
}

// From the machine's first process all others descend: to name it would be to name everybody. A container's first
// process is as good as any other.
bool is_everybody(pid_t process) {
  const auto own = own_namespace("pid");
  return process == 1 && (own == machine_pid_namespace || own == 0);
}

// Names the nearest common ancestor. A process can name one only, so what an earlier group needed is never narrowed.
void name_ancestor(const std::vector<pid_t>& ranks) {
  static std::mutex mutex;
  static pid_t named = 0;
  std::vector<std::vector<pid_t>> lines;
  for (const pid_t rank : ranks) lines.push_back(line_of_descent(rank));
  const pid_t ancestor = common_ancestor(lines);
  if (ancestor == 0 || is_everybody(ancestor)) return;
  std::lock_guard lock(mutex);
  const auto above = line_of_descent(ancestor);
  if (named != 0 && std::find(above.begin(), above.end(), named) != above.end()) return;
  // Whether it helps is found out by trying.
  if (prctl(PR_SET_PTRACER, static_cast<unsigned long>(ancestor), 0UL, 0UL, 0UL) == 0) named = ancestor;
}

// A word that nobody can guess: who finds it at the address that a rank shows reads that rank's memory.
uint64_t& own_word() {
  static uint64_t word = SegmentName::random().words[0];
  return word;
}

// Why this rank does not reach all others (an errno); 0 where it does.
int problem_of_reaching(SharedMeeting& meeting) {
  for (int i = 0; i < meeting.size(); ++i) {
    uint64_t seen = 0;
    const auto& lane = meeting.lane(i);
    const iovec here{&seen, sizeof seen}, there{reinterpret_cast<void*>(lane.probe.load()), sizeof seen};
    const pid_t process = meeting.group().processes[static_cast<size_t>(i)];
    if (process_vm_readv(process, &here, 1, &there, 1, 0) != sizeof seen) return errno;
    if (seen != lane.word.load()) return ESRCH;
  }
  return 0;
}

}  // namespace

std::vector<pid_t> line_of_descent(pid_t process) {
  std::vector<pid_t> line;
  while (process > 0) {
    line.push_back(process);
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string text;
    std::getline(file, text);
    // "7 (any (name)) S 1 …": its parent stands after its state.
    const auto name_end = text.rfind(')');
    if (name_end == std::string::npos || name_end + 4 > text.size()) break;
    process = std::atoi(text.c_str() + name_end + 4);
  }
  return line;
}

pid_t common_ancestor(const std::vector<std::vector<pid_t>>& lines) {
  if (lines.empty()) return 0;
  for (const pid_t candidate : lines.front()) {
    const auto has = [&](const auto& line) { return std::find(line.begin(), line.end(), candidate) != line.end(); };
    if (std::all_of(lines.begin(), lines.end(), has)) return candidate;
  }
  return 0;
}

bool try_reaching(SharedMeeting& meeting) {
  auto& group = meeting.group();
  auto& mine = meeting.lane(meeting.rank());
  mine.process = getpid();
  mine.probe = reinterpret_cast<uint64_t>(&own_word());
  mine.word = own_word();
  meeting.meet();
  group.processes.clear();
  for (int i = 0; i < meeting.size(); ++i) {
    const int64_t process = meeting.lane(i).process.load();
    if (process <= 0 || process > INT32_MAX) fail("rank {} shows {}, which is no process number", i, process);
    group.processes.push_back(static_cast<pid_t>(process));
  }
  // The first rank that does not reach all others, and why.
  int first = -1, problem = 0;
  const auto attempt = [&] {
    mine.given = problem_of_reaching(meeting);
    meeting.meet();
    first = -1;
    for (int i = 0; i < meeting.size() && first < 0; ++i) {
      problem = static_cast<int>(meeting.lane(i).given.load());
      if (problem != 0) first = i;
    }
    meeting.meet();  // everybody has read it
    return first < 0;
  };
  if (attempt()) return true;
  const auto scope = ptrace_scope();
  if (scope == "1") name_ancestor(group.processes);
  meeting.meet();  // all have
  if (attempt()) return true;
  static std::once_flag once;
  if (meeting.rank() == 0) {
    std::call_once(once, [&] {
      log::info(
          "rank {} may not read the memory of the other ranks of this host ({}{}): what does not lie in shared memory "
          "is copied through it",
          first, std::strerror(problem), scope.empty() ? "" : "; kernel.yama.ptrace_scope is " + scope);
    });
  }
  return false;
}

}  // namespace trireme
