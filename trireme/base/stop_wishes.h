// How often somebody has asked a process to stop, by signals. Terminals and `timeout` signal a process and then its whole
// group, and SIGHUP comes with SIGTERM when a session ends: one wish may be several signals.
#pragma once

#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace trireme {

class StopWishes {
 public:
  // The number of the wish, from 1, that the signal is; 0: it belongs to the one before. May be called by a handler of
  // signals.
  int count(int signal) {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t now_ns = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
    if (wishes_ > 0 && (signal == SIGHUP || now_ns - newest_ns_ < same_ns)) return 0;
    newest_ns_ = now_ns;
    return ++wishes_;
  }
  void forget() { wishes_ = 0; }

 private:
  static constexpr int64_t same_ns = 500'000'000;
  std::atomic<int> wishes_{0};
  std::atomic<int64_t> newest_ns_{0};
};

}  // namespace trireme
