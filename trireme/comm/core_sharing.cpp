#include "trireme/comm/core_sharing.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "trireme/comm/cores.h"
#include "trireme/comm/process.h"
#include "trireme/observe/board.h"

namespace trireme {

namespace {

constexpr int64_t window_ns = 100'000'000, window_steps = 3;

// Nanoseconds that all threads of this process were ready to run and had no core, since they began. Negative where the
// kernel does not count them.
int64_t waited_for_cores_ns() {
  DIR* tasks = opendir("/proc/self/task");
  if (!tasks) return -1;
  int64_t sum = 0;
  bool any = false;
  while (const auto* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    FILE* file = std::fopen(fmt::format("/proc/self/task/{}/schedstat", entry->d_name).c_str(), "re");
    if (!file) continue;  // the thread has ended
    long long ran = 0, waited = 0;
    if (std::fscanf(file, "%lld %lld", &ran, &waited) == 2) {
      sum += waited;
      any = true;
    }
    std::fclose(file);
  }
  closedir(tasks);
  return any ? sum : -1;
}

using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// The kernel's sched_attr, in its first version. The kernel's own header cannot stand beside that of older C libraries.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};

// GNU's OpenMP, which LibTorch uses; another one keeps its own way of waiting.
GompParallel gnu_openmp() { return reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel")); }

}  // namespace

bool WaitChoice::after_window(double rate, double share_without_core) {
  switch (state_) {
    case State::alone:
      awake_rate_ = rate;
      if (share_without_core < crowded) break;
      sleeps_ = true;
      state_ = State::tries_sleep;
      break;
    case State::tries_sleep:
      asleep_rate_ = rate;
      sleeps_ = asleep_rate_ > awake_rate_;
      left_ = hold_;
      state_ = State::holds;
      break;
    case State::holds:
      (sleeps_ ? asleep_rate_ : awake_rate_) = rate;
      if (!sleeps_ && share_without_core < crowded) {
        hold_ = first_hold;
        state_ = State::alone;
      } else if (--left_ <= 0) {
        hold_ = std::min(2 * hold_, longest_hold);
        sleeps_ = !sleeps_;
        state_ = sleeps_ ? State::tries_sleep : State::tries_awake;
      }
      break;
    case State::tries_awake:
      awake_rate_ = rate;
      if (share_without_core < crowded) {
        hold_ = first_hold;
        state_ = State::alone;
        break;
      }
      sleeps_ = asleep_rate_ > awake_rate_;
      left_ = hold_;
      state_ = State::holds;
      break;
  }
  return sleeps_;
}

// While it lives, OpenMP knows of more threads than there are cores, and lets threads that wait sleep at once (see
// GOMP_SPINCOUNT in the manual of libgomp). Its own threads sleep.
class CoreSharing::CrowdedTeam {
 public:
  CrowdedTeam() {
    std::promise<void> ready;
    thread_ = std::thread([this, &ready] {
      // The team of the thread that computes counts too.
      const int missing = usable_cores() - at::get_num_threads();
      gnu_openmp()([](void*) {}, nullptr, static_cast<unsigned>(std::max(0, missing) + 2), 0);
      ready.set_value();
      end_.get_future().wait();
    });
    ready.get_future().wait();
  }
  ~CrowdedTeam() {
    end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> end_;
  std::thread thread_;
};

CoreSharing::CoreSharing() : active_(at::get_num_threads() > 1 && gnu_openmp() && waited_for_cores_ns() >= 0) {}
CoreSharing::~CoreSharing() = default;

void CoreSharing::after_step() {
  if (!active_) return;
  const int64_t now_ns = monotonic_ns();
  ++steps_;
  if (begun_ns_ != 0 && (now_ns - begun_ns_ < window_ns || steps_ < window_steps)) return;
  const int64_t waited_ns = waited_for_cores_ns();
  if (begun_ns_ != 0) {
    const auto seconds = static_cast<double>(now_ns - begun_ns_) * 1e-9;
    const double waited = static_cast<double>(waited_ns - waited_ns_) * 1e-9;
    const bool sleeps =
        choice_.after_window(static_cast<double>(steps_) / seconds, waited / (seconds * at::get_num_threads()));
    if (sleeps != (crowded_ != nullptr)) crowded_ = sleeps ? std::make_unique<CrowdedTeam>() : nullptr;
  }
  begun_ns_ = now_ns;
  steps_ = 0;
  waited_ns_ = waited_ns;
}

std::vector<std::pair<std::string, std::string>> waiting_environment() {
  for (const char* chosen : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    if (std::getenv(chosen)) return {};
  }
  // Sleeping at once where there are more threads than cores; otherwise looking for some tenths of a millisecond first.
  return {{"OMP_WAIT_POLICY", "passive"}, {"GOMP_SPINCOUNT", "10000"}};
}

void take_short_turns() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 || attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;  // nanoseconds, the shortest; kernels before 6.12 do not look at it
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void begin_again_with_waiting_environment(const std::vector<std::string>& arguments) {
  const auto environment = waiting_environment();
  if (environment.empty() || usable_cores() == 1) return;
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 0);
  std::vector<std::string> words{own_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv.front(), argv.data());
  // Where that cannot be, threads wait as OpenMP has them wait: slower beside others, and otherwise right.
}

}  // namespace trireme
