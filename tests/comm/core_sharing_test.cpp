#include "trireme/comm/core_sharing.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

namespace trireme {
namespace {

// A machine on which steps are so fast, awake and asleep, and in which threads wait so long for cores while awake.
struct Machine {
  double awake = 100, asleep = 40, waiting = 0;

  // The share of so many windows in which threads slept.
  double run(WaitChoice& choice, int windows) const {
    int slept = 0;
    for (int i = 0; i < windows; ++i) {
      const bool sleeps = choice.sleeps();
      slept += sleeps;
      // Threads that sleep wait for cores too, as soon as they wake up.
      choice.after_window(sleeps ? asleep : awake, waiting);
    }
    return static_cast<double>(slept) / windows;
  }
};

const Machine alone{.awake = 100, .asleep = 40, .waiting = 0.01};
const Machine crowded{.awake = 10, .asleep = 60, .waiting = 0.4};
const Machine crowded_by_own{.awake = 90, .asleep = 50, .waiting = 0.2};

TEST(WaitChoice, StaysAwakeAlone) {
  WaitChoice choice;
  EXPECT_EQ(alone.run(choice, 1000), 0);
}

TEST(WaitChoice, SleepsBesideOthersAndTriesNowAndThen) {
  WaitChoice choice;
  crowded.run(choice, 2);
  EXPECT_TRUE(choice.sleeps());
  const double share = crowded.run(choice, 5000);
  EXPECT_GT(share, 0.99);
  EXPECT_LT(share, 1);
}

TEST(WaitChoice, IsAwakeAgainWhenTheOthersHaveGone) {
  for (const int crowded_for : {1, 2, 3, 10, 20, 100, 10000}) {
    WaitChoice choice;
    crowded.run(choice, crowded_for);
    alone.run(choice, static_cast<int>(WaitChoice::longest_hold) + 2);
    EXPECT_EQ(alone.run(choice, 100), 0) << crowded_for;
    // And looks as often as at first when they come back.
    crowded.run(choice, 2);
    alone.run(choice, static_cast<int>(WaitChoice::first_hold) + 2);
    EXPECT_FALSE(choice.sleeps()) << crowded_for;
  }
}

TEST(WaitChoice, StaysAwakeWhereSleepingIsSlower) {
  WaitChoice choice;
  EXPECT_LT(crowded_by_own.run(choice, 5000), 0.01);
  EXPECT_FALSE(choice.sleeps());
}

// Nanoseconds of the calling thread's turns, as the kernel shows them; 0 where it does not.
int64_t turn_ns() {
  std::ifstream file("/proc/thread-self/sched");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("se.slice ", 0) == 0) return std::stoll(line.substr(line.find(':') + 1));
  }
  return 0;
}

TEST(CoreSharing, TakesShortTurnsAtTheSamePriority) {
  utsname kernel{};
  uname(&kernel);
  int major = 0, minor = 0;
  std::sscanf(kernel.release, "%d.%d", &major, &minor);
  if (major * 100 + minor < 612 || turn_ns() == 0) GTEST_SKIP() << "this kernel does not know turns of a length";
  const int64_t before = turn_ns();
  std::thread([] {
    const int nice = getpriority(PRIO_PROCESS, 0);
    take_short_turns();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), nice);
    int64_t of_child = 0;
    std::thread([&] { of_child = turn_ns(); }).join();
    EXPECT_EQ(turn_ns(), 100'000);
    EXPECT_EQ(of_child, 100'000);
  }).join();
  EXPECT_EQ(turn_ns(), before);
}

}  // namespace
}  // namespace trireme
