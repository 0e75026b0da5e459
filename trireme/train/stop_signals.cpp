#include "trireme/train/stop_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stop_wishes.h"

namespace trireme {

namespace {

std::atomic<int> pipe_of_process{-1};
StopWishes wishes;

void on_stop_signal(int number) {
  const int saved = errno, wish = wishes.count(number);
  // The third finds a thread that cannot even leave, as one that waits for a lost disk.
  if (wish >= 3) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
  const auto byte = static_cast<unsigned char>(number);
  if (wish > 0) (void)!::write(pipe_of_process.load(), &byte, 1);
  errno = saved;
}

}  // namespace

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT: return "ctrl-C";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    default: return "a signal";
  }
}

StopSignals::StopSignals(std::shared_ptr<Board> board) : board_(std::move(board)) {
  if (::pipe2(pipe_, O_CLOEXEC) != 0) fail_errno("pipe");
  pipe_before_ = pipe_of_process.exchange(pipe_[1]);
  wishes.forget();
  thread_ = std::thread([this, rank = log::rank()] {
    log::set_rank(rank);
    listen();
  });
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(signals); ++i) {
    sigaction(signals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(signals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(signals); ++i) sigaction(signals[i], &before_[i], nullptr);
  pipe_of_process = pipe_before_;
  const unsigned char nothing = 0;
  (void)!::write(pipe_[1], &nothing, 1);
  thread_.join();
  for (const int descriptor : pipe_) ::close(descriptor);
}

void StopSignals::listen() {
  bool asked = false;
  for (unsigned char number = 0;;) {
    const ssize_t count = ::read(pipe_[0], &number, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count != 1 || number == 0) return;
    if (!std::exchange(asked, true)) {
      board_->request_stop(number);  // before anything that could take time
      log::info("{}: ending this step and saving a checkpoint (again: leave at once)", signal_name(number));
      continue;
    }
    log::info("{} again: leaving at once, without saving", signal_name(number));
    ::signal(number, SIG_DFL);
    ::kill(::getpid(), number);
  }
}

}  // namespace trireme
