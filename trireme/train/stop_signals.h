// A user's wish to stop. While it lives, ctrl-C, SIGTERM and SIGHUP ask the run to end its step, save and leave; a
// second wish (stop_wishes.h) ends the process at once. Signals that the program was started with ignored (nohup) stay so. What was heard and what is done about it is said, and stands in
// log.txt.
#pragma once

#include <signal.h>

#include <memory>
#include <thread>

#include "trireme/observe/board.h"

namespace trireme {

class StopSignals {
 public:
  explicit StopSignals(std::shared_ptr<Board> board);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  void listen();

  std::shared_ptr<Board> board_;
  struct sigaction before_[3];
  int pipe_[2] = {-1, -1};  // a handler may do little: it writes the signal's number here
  int pipe_before_ = -1;
  std::thread thread_;  // and this one does the rest
};

// "ctrl-C", "SIGTERM"
const char* signal_name(int signal);

}  // namespace trireme
