#include "trireme/observe/board.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "trireme/base/error.h"

namespace trireme {

namespace {
constexpr uint64_t board_magic = 0x3130656d65726974ULL;  // "tireme01"
}

struct alignas(128) Board::Header {
  uint64_t magic = board_magic;
  int32_t ranks = 0;
  int32_t maker = 0;  // process
  std::atomic<int32_t> stop_signal{0};
  std::atomic<int32_t> fault_state{0};  // 0 none, 1 being written, 2 readable
  int32_t fault_rank = -1;
  int32_t fault_exit_status = 1;
  char fault_message[1024] = {};
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

void Board::map(int descriptor, size_t bytes) {
  memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory_ == MAP_FAILED) fail_errno(path_.string());
  bytes_ = bytes;
  header_ = static_cast<Header*>(memory_);
  slots_ = reinterpret_cast<BoardSlot*>(header_ + 1);
}

std::shared_ptr<Board> Board::create(const std::filesystem::path& path, int ranks) {
  std::shared_ptr<Board> board(new Board);
  board->path_ = path;
  const auto building = path.string() + ".building";
  const int descriptor = ::open(building.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0) fail_errno(building);
  const size_t bytes = sizeof(Header) + ranks * sizeof(BoardSlot);
  if (posix_fallocate(descriptor, 0, static_cast<off_t>(bytes)) != 0) {
    ::close(descriptor);
    ::unlink(building.c_str());
    fail("{}: no room in shared memory for {} bytes; free some of it", building, bytes);
  }
  board->map(descriptor, bytes);
  ::close(descriptor);
  new (board->header_) Header;
  board->header_->ranks = ranks;
  board->header_->maker = getpid();
  for (int i = 0; i < ranks; ++i) new (board->slots_ + i) BoardSlot;
  // Renamed when whole: whoever sees the name sees a finished board.
  if (::rename(building.c_str(), path.c_str()) != 0) fail_errno(path.string());
  return board;
}

std::shared_ptr<Board> Board::open(const std::filesystem::path& path) {
  std::shared_ptr<Board> board(new Board);
  board->path_ = path;
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail_errno(path.string());
  struct stat status{};
  const bool large_enough = fstat(descriptor, &status) == 0 && static_cast<size_t>(status.st_size) >= sizeof(Header);
  if (large_enough) board->map(descriptor, static_cast<size_t>(status.st_size));
  ::close(descriptor);
  if (!large_enough || board->header_->magic != board_magic ||
      board->bytes_ != sizeof(Header) + static_cast<size_t>(board->header_->ranks) * sizeof(BoardSlot)) {
    fail("{} is not a board of this program's version", path.string());
  }
  return board;
}

std::shared_ptr<Board> Board::in_memory(int ranks) {
  std::shared_ptr<Board> board(new Board);
  board->heap_ = true;
  board->header_ = new Header;
  board->header_->ranks = ranks;
  board->slots_ = new BoardSlot[ranks];
  return board;
}

Board::~Board() {
  if (heap_) {
    delete header_;
    delete[] slots_;
  } else if (memory_) {
    munmap(memory_, bytes_);
  }
}

int Board::ranks() const { return header_->ranks; }
bool Board::maker_lives() const { return heap_ || ::kill(header_->maker, 0) == 0 || errno != ESRCH; }
BoardSlot& Board::slot(int local_rank) { return slots_[local_rank]; }

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
int Board::fault_exit_status() const { return faulted() ? header_->fault_exit_status : 1; }
std::string Board::fault_message() const { return faulted() ? header_->fault_message : ""; }

void Board::request_stop(int signal) { header_->stop_signal.store(signal, std::memory_order_release); }
int Board::stop_requested() const { return header_->stop_signal.load(std::memory_order_acquire); }

std::filesystem::path board_path(const std::string& job) {
  const std::filesystem::path folder =
      ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
  return folder / fmt::format("trireme-{}-{}", getuid(), job);
}

void sweep_boards() {
  const auto mine = board_path("pid");
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(mine.parent_path(), ignored)) {
    const auto name = entry.path().filename().string();
    const auto prefix = mine.filename().string();
    if (name.rfind(prefix, 0) != 0) continue;
    const int owner = std::atoi(name.c_str() + prefix.size());
    if (owner > 0 && ::kill(owner, 0) != 0 && errno == ESRCH) std::filesystem::remove(entry.path(), ignored);
  }
}

void remove_board(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  const auto prefix = path.filename().string() + ".";
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), ignored)) {
    if (entry.path().filename().string().rfind(prefix, 0) == 0) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace trireme
