// The watchdog: a thread of each rank that beats on the board and looks after the ranks of its host. A peer that is
// dead, or silent for `heartbeat_s`, ends the job with its rank and last operation in the message. A peer that beats
// but does nothing gives a warning at a deadline that follows the pace of its last steps, and ends the job at `stop_s`.
// Other hosts are looked after by whatever look_outside does.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "trireme/observe/board.h"

namespace trireme {

struct WatchdogOptions {
  double heartbeat_s = 5;
  double stop_s = 600;                // 0 = never
  std::function<void()> before_exit;  // finishes what must not be lost; at most a few seconds
  std::string advice;                 // said where the job ends: how to go on
  double late_s = 10;                 // no rank is called late before, however short the steps are
  // Called at each beat: tells other hosts that this one is there, and, once steps are made, says why the job must end.
  std::function<std::string(bool stepping)> look_outside;
};

class Watchdog {
 public:
  Watchdog(std::shared_ptr<Board> board, int local_rank, int rank, WatchdogOptions options);
  ~Watchdog();

  // From here on peers may end in any order: a rank that leaves is not missed.
  void stand_down();

 private:
  struct Peer;
  void run();
  void watch(Peer& peer, int64_t now_ns);
  void watch_pace(int64_t now_ns);
  [[noreturn]] void end_job(BoardSlot& culprit, const std::string& what);
  [[noreturn]] void end_job(int rank, const std::string& message);
  [[noreturn]] void follow();

  std::shared_ptr<Board> board_;
  int local_rank_;
  WatchdogOptions options_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> standing_down_{false};
  int64_t resumed_ns_ = 0;  // when this process last found itself to have been stopped
  int wake_ = -1;           // eventfd: wakes the thread to end
  std::thread thread_;
};

}  // namespace trireme
