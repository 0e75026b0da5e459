// How OpenMP's threads wait for each other: awake or asleep.
//
// A layer's work is divided among threads many thousand times a second, and after each piece they wait for the last of
// them. Alone on its cores a process is fastest where they stay awake meanwhile: waking up takes longer than most
// pieces. Beside other processes those that stay awake use up the time that the kernel grants the whole process, and
// the thread that all wait for gets none: a step takes five to a hundred times as long. So this looks, between steps,
// at how long threads were ready to run and had no core, and lets them sleep where that is faster. It changes no
// number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

// Chooses after each window of steps how threads wait in the next one.
class WaitChoice {
 public:
  // Whether threads sleep in the next window, after one with so many steps a second, in which a thread was ready
  // without a core for this share of the time.
  bool after_window(double rate, double share_without_core);
  bool sleeps() const { return sleeps_; }

  static constexpr double crowded = 0.05;  // a process alone is below this share
  static constexpr int64_t first_hold = 16, longest_hold = 256;

 private:
  enum class State { alone, tries_sleep, holds, tries_awake };

  State state_ = State::alone;
  bool sleeps_ = false;
  double awake_rate_ = 0, asleep_rate_ = 0;
  int64_t hold_ = first_hold, left_ = 0;  // windows for which a choice is kept
};

// Applies it to the threads of this process.
class CoreSharing {
 public:
  CoreSharing();
  ~CoreSharing();
  // Between two steps, on the thread that runs them. Costs nothing where there is one thread.
  void after_step();

 private:
  class CrowdedTeam;

  WaitChoice choice_;
  std::unique_ptr<CrowdedTeam> crowded_;
  int64_t begun_ns_ = 0, steps_ = 0, waited_ns_ = 0;
  bool active_ = false;
};

// What OpenMP must find in the environment when a process starts, so that CoreSharing can choose between staying awake
// for a moment and sleeping at once. Empty where the user has chosen.
std::vector<std::pair<std::string, std::string>> waiting_environment();

// Asks the kernel to let the threads that this one starts run often and briefly, instead of seldom and long: beside
// others a thread that wakes up with a moment's work then gets its core soon. The shares of time stay what they are.
void take_short_turns();

// Begins this program again with that environment, unless it has it already. Before there are threads.
void begin_again_with_waiting_environment(const std::vector<std::string>& arguments);

}  // namespace trireme
