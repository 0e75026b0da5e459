#include "trireme/observe/board.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <new>

#include "trireme/base/error.h"

namespace trireme {

namespace {
constexpr uint64_t board_magic = 0x3330656d65726974ULL;  // "tireme03"
}

struct alignas(128) Board::Header {
  std::atomic<uint64_t> magic{0};  // set once all else is there
  uint64_t job = 0;
  uint64_t pid_namespace = 0;  // of the maker
  int32_t ranks = 0;
  std::atomic<uint32_t> is_announced{0};
  SegmentName meeting;
  std::atomic<int32_t> stop_signal{0};
  std::atomic<int32_t> fault_state{0};  // 0 none, 1 being written, 2 readable
  int32_t fault_rank = -1;
  int32_t fault_exit_status = 1;
  char fault_message[1024] = {};
  std::atomic<uint32_t> has_log{0};
  char log[4096] = {};
};

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void OperationRecord::write(const char* name, int64_t new_step, int64_t new_index) {
  version.fetch_add(1, std::memory_order_acq_rel);
  std::strncpy(what, name, sizeof what - 1);
  step = new_step;
  index = new_index;
  version.fetch_add(1, std::memory_order_release);
}

std::string OperationRecord::read() const {
  // A torn record (its writer was killed inside write) is still the best witness: it is read as it is.
  std::string text(what, strnlen(what, sizeof what));
  if (text.empty()) return text;
  if (index >= 0) text += fmt::format(" {}", index);
  if (step >= 0) text += fmt::format(" (step {})", step);
  return text;
}

std::string BoardSlot::last_operation() const {
  const auto computing = compute.read(), communicating = communication.read();
  if (computing.empty()) return communicating.empty() ? "starting" : communicating;
  return communicating.empty() ? computing : computing + "; last message: " + communicating;
}

size_t Board::bytes_for(int ranks) { return sizeof(Header) + static_cast<size_t>(ranks) * sizeof(BoardSlot); }

std::shared_ptr<Board> Board::over(Segment memory) {
  std::shared_ptr<Board> board(new Board);
  board->memory_ = std::move(memory);
  board->header_ = reinterpret_cast<Header*>(board->memory_.data());
  board->slots_ = reinterpret_cast<BoardSlot*>(board->header_ + 1);
  return board;
}

std::shared_ptr<Board> Board::create(int ranks, uint64_t job) {
  auto board = over(Segment::create(bytes_for(ranks)));
  new (board->header_) Header;
  for (int i = 0; i < ranks; ++i) new (board->slots_ + i) BoardSlot;
  board->header_->job = job;
  board->header_->pid_namespace = own_namespace("pid");
  board->header_->ranks = board->ranks_ = ranks;
  board->header_->magic.store(board_magic, std::memory_order_release);
  return board;
}

std::shared_ptr<Board> Board::open(const SegmentName& name) {
  auto board = over(Segment::open(name));
  const auto* header = board->header_;
  const size_t bytes = board->memory_.bytes();
  board->ranks_ = bytes < sizeof(Header) ? 0 : header->ranks;
  if (board->ranks_ <= 0 || header->magic.load(std::memory_order_acquire) != board_magic ||
      bytes != bytes_for(board->ranks_)) {
    fail("{} is not a board of this program's version", name.path());
  }
  if (header->pid_namespace != own_namespace("pid")) {
    fail(
        "this rank and the one that made the board of their job number processes in different ways (pid namespaces {} "
        "and {}), and could not watch each other: start all ranks of a host in one container",
        own_namespace("pid"), header->pid_namespace);
  }
  return board;
}

std::shared_ptr<Board> Board::find(uint64_t job, int ranks) {
  for (const auto& name : Segment::living()) {
    try {
      // Most are of other jobs, or no boards, or gone by now.
      const auto segment = Segment::open(name, bytes_for(ranks));
      const auto* header = reinterpret_cast<const Header*>(segment.data());
      if (header->magic.load(std::memory_order_acquire) != board_magic || header->job != job) continue;
    } catch (const Error&) {
      continue;
    }
    return open(name);
  }
  return nullptr;
}

std::shared_ptr<Board> Board::in_memory(int ranks) {
  auto board = over(Segment::anonymous(bytes_for(ranks)));
  new (board->header_) Header;
  for (int i = 0; i < ranks; ++i) new (board->slots_ + i) BoardSlot;
  board->ranks_ = ranks;
  return board;
}

void Board::announce(const SegmentName& meeting) {
  header_->meeting = meeting;
  header_->is_announced.store(1, std::memory_order_release);
}

SegmentName Board::announced() const {
  return header_->is_announced.load(std::memory_order_acquire) ? header_->meeting : SegmentName{};
}

void Board::announce_log(const std::string& path) {
  if (path.size() >= sizeof header_->log) return;  // longer than any path that can be opened
  std::memcpy(header_->log, path.data(), path.size());
  header_->has_log.store(1, std::memory_order_release);
}

std::string Board::announced_log() const {
  if (!header_->has_log.load(std::memory_order_acquire)) return {};
  return {header_->log, strnlen(header_->log, sizeof header_->log)};
}

bool Board::claim_fault(int rank, int exit_status, const std::string& message) {
  int32_t none = 0;
  if (!header_->fault_state.compare_exchange_strong(none, 1)) return false;
  header_->fault_rank = rank;
  header_->fault_exit_status = exit_status;
  std::strncpy(header_->fault_message, message.c_str(), sizeof header_->fault_message - 1);
  header_->fault_state.store(2, std::memory_order_release);
  return true;
}

bool Board::faulted() const { return header_->fault_state.load(std::memory_order_acquire) == 2; }
// Never 0, whatever stands there: a job that failed must not look as if it had not.
int Board::fault_exit_status() const {
  const int status = faulted() ? header_->fault_exit_status : 1;
  return status > 0 && status < 256 ? status : 1;
}

std::string Board::fault_message() const {
  const char* text = header_->fault_message;
  return faulted() ? std::string(text, strnlen(text, sizeof header_->fault_message)) : "";
}

void Board::request_stop(int signal) { header_->stop_signal.store(signal, std::memory_order_release); }
int Board::stop_requested() const {
  const int signal = header_->stop_signal.load(std::memory_order_acquire);
  return signal > 0 && signal < NSIG ? signal : 0;
}

uint64_t own_namespace(const char* kind) {
  struct stat status{};
  return ::stat(fmt::format("/proc/self/ns/{}", kind).c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace trireme
